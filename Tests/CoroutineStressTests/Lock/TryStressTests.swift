import Coroutine
import Dispatch
import Testing

/// A try fails for the reasons that its documentation gives, and never because another thread is inside.
@Suite("Stress: tries", .timeLimit(.minutes(10)))
struct TryStressTests {
  private static let threads = 4

  private let stress = Stress()
  private var rounds: Int { stress.rounds(10_000) }
  private var all: Int { Self.threads * rounds }

  /// Calls `attempt` in every round on every thread, the threads at once; returns the number of successes.
  private func successes(
    _ attempt: @escaping @Sendable (_ round: Int) -> Bool
  ) async throws -> Int {
    let (rounds, count) = (rounds, Census())
    try await onThreads(Self.threads) { _ in
      var successes = 0
      for round in 0..<rounds where attempt(round) { successes += 1 }
      count.change(by: successes)
    }
    return count.now
  }

  /// Calls `attempt` on every thread again and again; once all threads do so, a coroutine runs `body` in every round.
  private func refusals(
    of attempt: @escaping @Sendable () -> Bool,
    while body: @escaping @Sendable () throws -> Void
  ) async throws -> (tries: Int, refused: Int) {
    let (rounds, started, turns, tries, refused) = (rounds, Census(), Census(), Census(), Census())
    let other = co_launch(on: DispatchQueue(label: "coroutine.stress.meanwhile")) {
      // Also of a body that throws: the threads must end.
      defer { turns.change(by: rounds) }
      while started.now < Self.threads { try co_yield() }
      for _ in 0..<rounds {
        try body()
        turns.change()
        try co_yield()
      }
    }
    try await onThreads(Self.threads) { _ in
      var (tried, failed) = (0, 0)
      started.change()
      while turns.now < rounds {
        tried += 1
        if !attempt() { failed += 1 }
      }
      tries.change(by: tried)
      refused.change(by: failed)
    }
    try await other.value
    return (tries.now, refused.now)
  }

  @Test func `a limiter gives out every token that is there, while others try and acquire`() async throws {
    let burst = 1_000_000_000_000
    let limiter = RateLimiter(1, per: .seconds(86_400), burst: burst)
    let (tries, refused) = try await refusals {
      limiter.tryAcquire()
    } while: {
      try limiter.acquire()
    }
    #expect(refused == 0, "\(stress.replay)")
    // No token was given out twice.
    let left = burst - tries - rounds
    #expect(!limiter.tryAcquire(left + 1) && limiter.tryAcquire(left), "\(stress.replay)")
  }

  @Test func `a limiter gives out no token that is not there`() async throws {
    let limiter = RateLimiter(1, per: .seconds(86_400), burst: rounds)
    #expect(try await successes { _ in limiter.tryAcquire() } == rounds, "\(stress.replay)")
  }

  /// The select finds the lock held, marks it as contended, and does not wait.
  @Test func `readers lock together, while a select tries to lock for writing`() async throws {
    let lock = FairReadWriteLock()
    #expect(lock.tryLockRead())
    let (_, refused) = try await refusals {
      guard lock.tryLockRead() else { return false }
      lock.unlockRead()
      return true
    } while: {
      try co_select {
        lock.onWriteLock { Issue.record("a reader holds it") }
          .otherwise {}
      }
    }
    #expect(refused == 0, "\(stress.replay)")
    lock.unlockRead()
    #expect(lock.tryLockWrite())
  }

  @Test func `a semaphore gives out every permit that is there, while a select asks for more`() async throws {
    let total = 2 * Self.threads + 1
    let semaphore = FairSemaphore(total)
    #expect(semaphore.tryAcquire())
    let (_, refused) = try await refusals {
      guard semaphore.tryAcquire(2) else { return false }
      semaphore.release()
      semaphore.release()
      return true
    } while: {
      try co_select {
        semaphore.onAcquire(total) { Issue.record("one is taken") }
          .otherwise {}
      }
    }
    #expect(refused == 0, "\(stress.replay)")
    #expect(semaphore.available == total - 1, "\(stress.replay)")
  }

  @Test func `of all that try, one has each lock`() async throws {
    let mutexes = (0..<rounds).map { _ in FairMutex() }
    let locks = (0..<rounds).map { _ in FairReadWriteLock() }
    let semaphores = (0..<rounds).map { _ in FairSemaphore(3) }
    #expect(try await successes { mutexes[$0].tryLock() } == rounds, "\(stress.replay)")
    #expect(try await successes { locks[$0].tryLockWrite() } == rounds, "\(stress.replay)")
    #expect(try await successes { semaphores[$0].tryAcquire() } == 3 * rounds, "\(stress.replay)")
  }

  @Test func `of all that settle a promise, one does`() async throws {
    let promises = (0..<rounds).map { _ in Promise<Int>() }
    #expect(try await successes { promises[$0].fulfill(1) } == rounds, "\(stress.replay)")
    let failing = (0..<rounds).map { _ in Promise<Int>() }
    #expect(try await successes { failing[$0].reject(CancellationError()) } == rounds, "\(stress.replay)")
  }

  @Test(arguments: [true, false])
  func `a channel takes every value for which it has room, and gives out every value that it has`(
    _ isBounded: Bool
  ) async throws {
    let channel = isBounded ? Channel<Int>(.bounded(all)) : Channel<Int>(.unbounded)
    let sent = try await successes { if case .sent = channel.trySend($0) { true } else { false } }
    #expect(sent == all, "\(stress.replay)")
    if isBounded, case .sent = channel.trySend(0) { Issue.record("no room is left") }
    let received = try await successes { _ in if case .received = channel.tryReceive() { true } else { false } }
    #expect(received == all, "\(stress.replay)")
    if case .received = channel.tryReceive() { Issue.record("no value is left") }
  }

  @Test func `an actor takes every message while it lives`() async throws {
    let handled = Census()
    let actor = co_actor(of: Int.self) { mailbox in while try mailbox.receive() != nil { handled.change() } }
    let told = try await successes { if case .sent = actor.tryTell($0) { true } else { false } }
    #expect(told == all, "\(stress.replay)")
    await until(handled, shows: all)
    actor.cancel()
  }
}
