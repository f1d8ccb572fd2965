import CTestSupport
import Dispatch
import Testing

@testable import Coroutine

/// A coroutine none of whose waits has to wait never switches by itself.
@Suite("A coroutine whose waits are satisfied at once", .timeLimit(.minutes(10)))
struct GivingWayTests {
  // What a busy queue lets run is a matter of its time slice. A timeout is no wait: it runs its body at once.
  @Test(.tags(.realClock), arguments: WaitingVerb.allCases.filter { $0 != .timeout })
  func `lets the handlers, the sleeping coroutines and the blocks of its queue run`(verb: WaitingVerb) async throws {
    let props = try await WaitingVerb.Props()
    let queue = taggedQueue("giving way")
    let ran = try await onCoroutine(on: queue) {
      try Others(of: queue).run { try verb.callWhereItCouldFinishAtOnce(props, Trace()) }
    }
    #expect(ran == "handler true, sleeper true, block true")
  }

  // What a busy queue lets run is a matter of its time slice.
  @Test(.tags(.realClock), arguments: Repeated.allCases)
  func `lets the others of its queue run, whatever it repeats on the same objects`(wait: Repeated) async throws {
    let queue = taggedQueue("giving way")
    let ran = try await onCoroutine(on: queue) { try wait.run(on: queue) { try Others(of: queue).run($0) } }
    #expect(ran == "handler true, sleeper true, block true")
  }

  // What a busy queue lets run is a matter of its time slice.
  @Test(.tags(.realClock), arguments: [false, true])
  func `lets the others of its queue run if it is an actor that has messages`(withTimer: Bool) async throws {
    let queue = taggedQueue("giving way")
    let ran = Promise<String>()
    let actor = co_actor(of: Int.self, on: queue) { mailbox in
      // With a timer the mailbox looks for a message in other places first.
      if withTimer { _ = mailbox.schedule(2, after: .seconds(3600)) }
      ran.fulfill(
        try Others(of: queue).run {
          _ = mailbox.actor.tryTell(1)
          _ = try mailbox.receive()
        }
      )
    }
    #expect(try await ran.value == "handler true, sleeper true, block true")
    actor.cancel()
  }

  // It yields when its time slice is over.
  @Test(.tags(.realClock)) func `attaches a million handlers in bounded memory`() async {
    await #expect(processExitsWith: .success) {
      let rounds = isSanitized ? 100_000 : 1_000_000
      let most = try await onSerialQueue {
        let settled = Promise<Int>.value(1)
        let ran = Locked(0)
        var most = (handlers: 0, bytes: 0)
        let before = cts_heap_bytes()
        for round in 1...rounds {
          _ = settled.then { _ in ran.withLock { $0 += 1 } }
          _ = try co_await(settled)
          if round.isMultiple(of: 1_000) {
            most.handlers = max(most.handlers, round - ran.current)
            most.bytes = max(most.bytes, Int(cts_heap_bytes()) - Int(before))
          }
        }
        while ran.current < rounds { try co_yield() }
        return most
      }
      // Without the yields all of them are left to the end, in about 300 MB.
      precondition(most.handlers < rounds / 10, "\(most)")
      precondition(most.bytes < 64 << 20, "\(most)")
    }
  }

  // It yields when its time slice is over.
  @Test(.tags(.realClock)) func `loses no value if it is cancelled where it yields`() async throws {
    for round in 0..<20 {
      let channel = Channel<Int>(1_000_000)
      let (sent, received) = (Locked(0), Locked(0))
      let ended = try await onSerialQueue {
        let job = co_launch {
          while true {
            try channel.send(1)
            sent.withLock { $0 += 1 }
            if try channel.receive() != nil { received.withLock { $0 += 1 } }
          }
        }
        try co_delay(.microseconds(100 * round))
        job.cancel()
        return outcome { try job.join() }
      }
      #expect(ended == "CancellationError")
      var left = 0
      while case .received = channel.tryReceive() { left += 1 }
      #expect(received.current + left == sent.current)
    }
  }

  @Test func `continues in a shield, even if it has been cancelled`() async throws {
    let settled = Promise<Int>.value(1)
    try await onSerialQueue {
      let (isShielded, isCancelled) = (Flag(), Flag())
      let job = co_launch {
        try co_shield {
          isShielded.raise()
          let limit = Clock.now + 120_000_000_000
          while !isCancelled.isRaised, Clock.now < limit { _ = try co_await(settled) }
          let end = Clock.now + 5_000_000
          while Clock.now < end { _ = try co_await(settled) }
        }
        return outcome { _ = try co_await(settled) }
      }
      while !isShielded.isRaised { try co_yield() }
      job.cancel()
      isCancelled.raise()
      #expect(try co_shield { try job.join() } == "CancellationError")
    }
  }
}

/// What else a queue has to run beside the calling coroutine: a handler, a coroutine that sleeps, and a block.
private struct Others {
  private let handler = Flag()
  private let sleeper = Flag()
  private let block = Flag()

  /// Called in a coroutine of the queue.
  init(of queue: DispatchQueue) {
    _ = Promise<Void>.value(()).then { [handler] in handler.raise() }
    co_launch { [sleeper] in
      try co_delay(.milliseconds(1))
      sleeper.raise()
    }
    queue.async { [block] in block.raise() }
  }

  /// Repeats `wait` until all of them have run, for two minutes at most; returns which have.
  func run(_ wait: () throws -> Void) throws -> String {
    let end = Clock.now + 120_000_000_000
    while !(handler.isRaised && sleeper.isRaised && block.isRaised), Clock.now < end { try wait() }
    return "handler \(handler.isRaised), sleeper \(sleeper.isRaised), block \(block.isRaised)"
  }
}

/// Waits that are satisfied at once, other than those of `WaitingVerb`.
enum Repeated: String, CaseIterable, Sendable {
  case poll, iterate, condition, tell, isolated

  /// Calls `repeats` with the wait, on a coroutine of `queue`.
  func run<Output>(on queue: DispatchQueue, _ repeats: (() throws -> Void) throws -> Output) throws -> Output {
    let channel = Channel<Int>(1)
    switch self {
    case .poll:
      return try repeats {
        try co_select {
          channel.onReceive { _ in }
          SelectCase.otherwise {}
        }
      }
    case .iterate:
      return try repeats {
        _ = channel.trySend(1)
        while try channel.receive() != nil { break }
      }
    // Inside of one lock, which would count by itself.
    case .condition:
      let mutex = FairMutex()
      let condition = Condition(mutex)
      return try mutex.withLock { try repeats { try condition.wait { true } } }
    // Without a bound, so that no tell waits for room.
    case .tell:
      let actor = co_actor(of: Int.self, on: taggedQueue("told")) { mailbox in try mailbox.forEach { _ in } }
      defer { actor.cancel() }
      return try repeats { try actor.tell(1) }
    case .isolated:
      let resident = Resident(on: queue)
      return try repeats { try co_isolated(resident) { _ in } }
    }
  }
}
