import Dispatch
import Testing

@testable import Coroutine

/// A coroutine none of whose waits has to wait never switches by itself.
@Suite("A coroutine whose waits are satisfied at once", .timeLimit(.minutes(5)))
struct GivingWayTests {
  enum Verb: String, CaseIterable, Sendable {
    case await, asyncReady, suspend, join, send, iterate, lock, readLock, acquire, select, poll, group, all, once
  }

  // What a busy queue lets run is a matter of its time slice.
  @Test(.tags(.realClock), arguments: Verb.allCases)
  func `lets the handlers, the sleeping coroutines and the blocks of its queue run`(verb: Verb) async throws {
    let queue = taggedQueue("giving way")
    let wait = try await onCoroutine { try ready(verb) }
    let (handler, sleeper, block) = (Flag(), Flag(), Flag())
    let inTime = try await onCoroutine(on: queue) {
      _ = Promise<Void>.value(()).then { handler.raise() }
      co_launch {
        try co_delay(.milliseconds(1))
        sleeper.raise()
      }
      queue.async { block.raise() }
      let end = Clock.now + 120_000_000_000
      while !(handler.isRaised && sleeper.isRaised && block.isRaised), Clock.now < end { try wait() }
      return Clock.now < end
    }
    #expect(inTime, "handler \(handler.isRaised), sleeper \(sleeper.isRaised), block \(block.isRaised)")
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

/// A wait that is satisfied at once, to be repeated.
private func ready(_ verb: GivingWayTests.Verb) throws -> @Sendable () throws -> Void {
  switch verb {
  case .await:
    let settled = Promise<Int>.value(1)
    return { _ = try co_await(settled) }
  case .asyncReady: return { _ = try co_await { 1 } }
  case .suspend: return { _ = try co_suspend { (resumer: Resumer<Int>) in resumer.resume(1) } }
  case .join:
    let job = co_launch { 1 }
    try job.join()
    return { _ = try job.join() }
  case .send:
    let channel = Channel<Int>(1)
    return {
      try channel.send(1)
      _ = channel.tryReceive()
    }
  case .iterate:
    let channel = Channel<Int>(1)
    return {
      _ = channel.trySend(1)
      for _ in channel { break }
    }
  case .lock:
    let lock = FairMutex()
    return { try lock.withLock {} }
  case .readLock:
    let lock = FairReadWriteLock()
    return { try lock.withReadLock {} }
  case .acquire:
    let semaphore = FairSemaphore(2)
    return {
      try semaphore.acquire()
      semaphore.release()
    }
  case .select:
    let channel = Channel<Int>(1)
    return {
      _ = channel.trySend(1)
      try co_select { channel.onReceive { _ in } }
    }
  case .poll:
    let channel = Channel<Int>(1)
    return {
      try co_select {
        channel.onReceive { _ in }
        SelectCase.otherwise {}
      }
    }
  case .group:
    let group = WaitGroup()
    return { try group.join() }
  case .all:
    let settled = [Promise<Int>.value(1), Promise<Int>.value(2)]
    return { _ = try co_all(settled) }
  case .once:
    let once = Once<Int>()
    return { _ = try once.run { 1 } }
  }
}
