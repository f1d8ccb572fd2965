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
    let began = Locked(0)
    let most = 1_000
    let rounds = try await onCoroutine(on: queue) {
      var others: [Job<Void>] = []
      for round in 0..<most {
        let hasNote = try co_isolated(ledger, reentrant: false) { ledger in
          if round == 0 {
            for isReentrant in kinds {
              others.append(
                co_launch(on: queue) {
                  try co_isolated(ledger, reentrant: isReentrant) { _ in began.withLock { $0 += 1 } }
                }
              )
            }
            Self.note(1, in: ledger)
          }
          try co_yield()
          return !ledger.notes.isEmpty
        }
        if hasNote, began.current == kinds.count {
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
  private static func note(_ number: Int, in ledger: Ledger) { Task.immediate { await ledger.note(number) } }

  @Test func `in a world as well, methods run in the order of their calls`() async throws {
    for seed in 0..<20 as Range<UInt64> {
      let notes = try await onOwnThread {
        try Simulation(seed: seed).run {
          let queue = DispatchQueue(label: "coroutine.tests.world")
          let ledger = Ledger(on: queue)
          return try co_launch(on: queue) {
            try co_isolated(ledger, reentrant: false) { _ in
              Self.note(1, in: ledger)
              // The first call is put aside meanwhile; the second one is only queued when the body ends.
              for _ in 0..<3 { try co_yield() }
              Self.note(2, in: ledger)
            }
            while try co_isolated(ledger, { $0.notes.count }) < 2 { try co_yield() }
            return try co_isolated(ledger) { $0.notes }
          }
          .join()
        }
      }
      #expect(notes == [1, 2], "seed \(seed)")
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

  @Test func `no body begins while another one is on the stack`() async throws {
    let queue = taggedQueue("nested body")
    let ledger = Ledger(on: queue)
    for isReentrant in [false, true] {
      let seen = try await onCoroutine(on: queue) {
        let (seen, job) = try co_isolated(ledger) { ledger in
          let job = co_launch(on: queue, start: .immediate) {
            try co_isolated(ledger, reentrant: isReentrant) { ledger in
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
