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
  func start(reentrant: Bool) -> (Bool, Job<Void>) {
    let job = co_launch(on: queue, start: .immediate) {
      try co_isolated(self, reentrant: reentrant) { vault in
        vault.isConsistent = false
        try co_yield()
        vault.isConsistent = true
      }
    }
    return (isConsistent, job)
  }
}

@Suite("co_isolated: who comes when", .timeLimit(.minutes(5)))
struct IsolatedOrderTests {
  @Test(arguments: [[false, true], []])
  func `exclusive bodies in a loop keep neither other bodies nor the actor's methods out`(_ kinds: [Bool]) async throws
  {
    let queue = taggedQueue("loop")
    let ledger = Ledger(on: queue)
    let seen = Locked<Set<String>>([])
    let most = 1_000
    let rounds = try await onCoroutine(on: queue) {
      var others: [Job<Void>] = []
      for round in 0..<most where seen.current.count <= kinds.count {
        try co_isolated(ledger, reentrant: false) { _ in
          if round == 0 {
            for isReentrant in kinds {
              others.append(
                co_launch(on: queue) {
                  try co_isolated(ledger, reentrant: isReentrant) { _ in
                    seen.withLock { _ = $0.insert(isReentrant ? "reentrant" : "exclusive") }
                  }
                }
              )
            }
            Self.note(in: ledger) { seen.withLock { _ = $0.insert("method") } }
          }
          try co_yield()
        }
        if seen.current.count > kinds.count {
          for other in others { try other.join() }
          return round
        }
      }
      return most
    }
    #expect(rounds < most)
  }

  /// Calls a method of the actor from a Task that has enqueued the call when this returns.
  ///
  /// Not in the body, because a Task there would be isolated to the actor, and need no call.
  private static func note(in ledger: Ledger, _ done: @escaping @Sendable () -> Void) {
    Task.immediate {
      await ledger.note(1)
      done()
    }
  }

  @Test func `bodies begin in the order of their calls, whatever their kind`() async throws {
    let queue = taggedQueue("order of bodies")
    let ledger = Ledger(on: queue)
    let trace = Trace()
    try await onCoroutine(on: queue) {
      let kinds = ["exclusive 1", "reentrant 2", "reentrant 3", "exclusive 4", "reentrant 5", "exclusive 6"]
      let jobs = try co_isolated(ledger, reentrant: false) { _ in
        let jobs = kinds.map { kind in
          co_launch(on: queue) {
            try co_isolated(ledger, reentrant: kind.hasPrefix("reentrant")) { _ in
              trace(kind)
              try co_yield()
              trace("end of \(kind)")
            }
          }
        }
        for _ in 0..<3 { try co_yield() }
        return jobs
      }
      for job in jobs { try job.join() }
    }
    #expect(
      trace.all == [
        "exclusive 1", "end of exclusive 1", "reentrant 2", "reentrant 3", "end of reentrant 2", "end of reentrant 3",
        "exclusive 4", "end of exclusive 4", "reentrant 5", "end of reentrant 5", "exclusive 6", "end of exclusive 6",
      ]
    )
  }

  @Test func `those behind a cancelled exclusive call begin without it`() async throws {
    let queue = taggedQueue("cancelled call")
    let ledger = Ledger(on: queue)
    let trace = Trace()
    try await onCoroutine(on: queue) {
      try co_isolated(ledger) { _ in
        let exclusive = co_launch(on: queue) { try co_isolated(ledger, reentrant: false) { _ in trace("exclusive") } }
        try co_yield()
        let reentrant = co_launch(on: queue) { try co_isolated(ledger) { _ in trace("reentrant") } }
        try co_yield()
        trace("cancel")
        exclusive.cancel()
        try reentrant.join()
        #expect(outcome { try exclusive.join() } == "CancellationError")
      }
      // The actor is free again.
      try co_isolated(ledger, reentrant: false) { _ in trace("free") }
    }
    #expect(trace.all == ["cancel", "reentrant", "free"])
  }

  @Test func `no body begins while a method of the actor is on the stack`() async throws {
    let vault = Vault(on: taggedQueue("vault"))
    for isReentrant in [false, true] {
      let (seen, job) = await vault.start(reentrant: isReentrant)
      #expect(seen)
      try await job.value
      #expect(await vault.isConsistent)
    }
  }
}
