import Dispatch
import Testing

@testable import Coroutine

/// An actor with a method that starts a coroutine while it is on the stack.
private actor Vault {
  private let executor: CoroutineExecutor
  nonisolated var unownedExecutor: UnownedSerialExecutor { executor.asUnownedSerialExecutor() }
  private let queue: DispatchQueue
  var isConsistent = true

  init(on queue: DispatchQueue) {
    self.queue = queue
    executor = CoroutineExecutor(queue)
  }

  /// Returns what the method sees after the start of a coroutine that uses the actor, and that coroutine.
  func start() -> (Bool, Job<Void>) {
    let job = co_launch(on: queue, start: .immediate) {
      try co_isolated(self) { vault in
        vault.isConsistent = false
        try co_yield()
        vault.isConsistent = true
      }
    }
    return (isConsistent, job)
  }
}

@Suite("co_isolated: who comes when", .timeLimit(.minutes(10)))
struct IsolatedOrderTests {
  @Test func `no body begins while another one is on the stack`() async throws {
    let queue = taggedQueue("nested body")
    let ledger = Ledger(on: queue)
    let seen = try await onCoroutine(on: queue) {
      let (seen, job) = try co_isolated(ledger) { ledger in
        let job = co_launch(on: queue, start: .immediate) {
          try co_isolated(ledger) { ledger in
            ledger.isConsistent = false
            try co_yield()
            ledger.isConsistent = true
          }
        }
        return (ledger.isConsistent, job)
      }
      try job.join()
      return seen
    }
    #expect(seen)
  }

  @Test func `no body begins under another one by way of a coroutine of another queue`() async throws {
    let (queue, far) = (taggedQueue("nested body"), taggedQueue("far"))
    let ledger = Ledger(on: queue)
    let seen = try await onCoroutine(on: queue) {
      let (seen, job) = try co_isolated(ledger) { ledger in
        let inner = Locked<Job<Void>?>(nil)
        co_launch(on: far, start: .immediate) {
          inner.current = co_launch(on: queue, start: .immediate) {
            try co_isolated(ledger) { ledger in
              ledger.isConsistent = false
              try co_yield()
              ledger.isConsistent = true
            }
          }
        }
        return (ledger.isConsistent, inner.current)
      }
      try job?.join()
      return seen
    }
    #expect(seen)
  }

  @Test func `no body begins while a method of the actor is on the stack`() async throws {
    let vault = Vault(on: taggedQueue("vault"))
    let (seen, job) = await vault.start()
    #expect(seen)
    try await job.value
    #expect(await vault.isConsistent)
  }
}
