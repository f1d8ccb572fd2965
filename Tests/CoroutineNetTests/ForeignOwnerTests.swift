import CTestSupport
import Dispatch
import Glibc
import Testing

@testable import Coroutine
@testable import CoroutineNet

/// What the library that owns the number may do to it, with the rules and against them.
@Suite("The owner of a foreign descriptor", .timeLimit(.minutes(10)))
struct ForeignOwnerTests {
  /// A pair whose numbers the test closes itself.
  private func openPair() throws -> (one: Int32, other: Int32) {
    var ends: [Int32] = [-1, -1]
    try #require(socketpair(AF_UNIX, Int32(SOCK_STREAM.rawValue | SOCK_NONBLOCK.rawValue), 0, &ends) == 0)
    return (ends[0], ends[1])
  }

  @Test func `closed before the end: a wait sees the peer, and the end wakes it`() async throws {
    try await onCoroutine {
      let pair = try openPair()
      let watch = try ForeignDescriptor(pair.one)
      let first = co_launch { try watch.wait(for: .readable) }
      try watch.untilAwaited(.reading)
      close(pair.one)
      #expect(write(pair.other, [1], 1) == 1)
      #expect(try first.join() == .readable)
      // The byte is never read, for the library has no number any more.
      let second = co_launch { netError { try watch.wait(for: .readable, afterEAGAIN: .readable) } }
      if try second.join() == nil {
        let third = co_launch { netError { while true { try watch.wait(for: .readable) } } }
        watch.end()
        #expect(try third.join() == .closed)
      }
      watch.end()
      // Nothing holds the file now, unless another test has just forked, so its peer finds the end.
      var byte: UInt8 = 0
      while read(pair.other, &byte, 1) != 0 { try co_yield() }
      close(pair.other)
    }
  }

  @Test func `after a short read alone, a wait still sees the end that came before it`() async throws {
    try await onCoroutine {
      let pair = try openPair()
      let watch = try ForeignDescriptor(pair.one)
      let first = co_launch { try watch.wait(for: .readable) }
      try watch.untilAwaited(.reading)
      #expect(write(pair.other, [1], 1) == 1)
      _ = try first.join()
      close(pair.other)
      while !watch.watch.watched.direction(.reading).word.isStuck { try co_yield() }
      try watch.wait(for: .readable)
      var bytes = [UInt8](repeating: 0, count: 8)
      #expect(read(pair.one, &bytes, bytes.count) == 1)
      watch.settle(.readable, afterShortRead: true)
      // The end has had its event.
      #expect(try watch.wait(for: .readable) == .readable)
      #expect(read(pair.one, &bytes, bytes.count) == 0)
      watch.end()
      close(pair.one)
    }
  }

  @Test func `a number that is used again: the old object does not disturb the new file, nor the other way`()
    async throws
  {
    try await onCoroutine {
      let old = try openPair()
      let stale = try ForeignDescriptor(old.one)
      let staleWait = co_launch { netError { try stale.wait(for: .readable) } }
      try stale.untilAwaited(.reading)
      let new = try openPair()
      // In one step, so that no other test gets the number between.
      try #require(dup2(new.one, old.one) == old.one)
      let fresh = try ForeignDescriptor(old.one)
      let freshWait = co_launch { try fresh.wait(for: .readable) }
      try fresh.untilAwaited(.reading)
      #expect(stale.isAwaited(.reading), "the new file has not woken the old wait")
      stale.end()
      #expect(try staleWait.join() == .closed)
      #expect(fresh.isAwaited(.reading), "the end of the old object has not woken the new wait")
      #expect(write(new.other, [1], 1) == 1)
      #expect(try freshWait.join() == .readable)
      fresh.end()
      for number in [old.one, old.other, new.one, new.other] { close(number) }
    }
  }

  @Test func `dup: two objects for one file are both woken, and one's end leaves the other`() async throws {
    try await onCoroutine {
      let pair = try ForeignPair()
      let copy = dup(pair.one)
      let watches = [try ForeignDescriptor(pair.one), try ForeignDescriptor(pair.one), try ForeignDescriptor(copy)]
      let jobs = watches.map { watch in co_launch { try watch.wait(for: .readable) } }
      for watch in watches { try watch.untilAwaited(.reading) }
      pair.send()
      for job in jobs { #expect(try job.join() == .readable) }
      #expect(pair.take() == 1)
      watches[0].end()
      close(copy)
      let later = watches.dropFirst().map { watch in
        co_launch { try watch.wait(for: .readable, afterEAGAIN: .readable) }
      }
      for watch in watches.dropFirst() { try watch.untilAwaited(.reading) }
      pair.send()
      for job in later { #expect(try job.join() == .readable) }
    }
  }

  // In a process of its own, whose other threads sleep at the fork: one that runs may hold a lock of Swift's runtime or
  // of the C library, which the child would wait for.
  @Test func `fork: a child that ends its copy leaves the parent's watch`() async {
    await #expect(processExitsWith: .success) {
      // On a queue: while a shared worker is busy, the watchdog's thread wakes every two milliseconds.
      try await co_launch(on: DispatchQueue(label: "forks")) {
        let pair = try ForeignPair()
        let watch = try ForeignDescriptor(pair.one)
        let job = co_launch { try watch.wait(for: .readable) }
        try watch.untilAwaited(.reading)
        let context = Unmanaged.passUnretained(watch).toOpaque()
        while !cts_may_fork() { sched_yield() }
        let status = cts_in_child_with_sockets(
          30,
          { context in
            Unmanaged<ForeignDescriptor>.fromOpaque(context!).takeUnretainedValue().end()
            return 0
          },
          context
        )
        #expect(status == 0)
        #expect(watch.isAwaited(.reading))
        pair.send()
        #expect(try job.join() == .readable)
      }
      .value
    }
  }

  @Test func `pairs play with late readers, early ends and releases, and every byte is read`() async throws {
    let run = Run()
    let rounds = run.rounds(300)
    try await onOwnWorkers {
      try co_scope { scope in
        for index in 0..<4 {
          scope.launch {
            var random = run.random(index)
            let pair = try ForeignPair()
            let writer = co_launch {
              for _ in 0..<rounds {
                while !pair.trySend() { try co_yield() }
                try co_yield()
              }
            }
            var taken = 0
            var watch = try ForeignDescriptor(pair.one)
            var sawEAGAIN = false
            while taken < rounds {
              // A library that reads a part, or everything, or that replaces its descriptor.
              switch random.next() % 8 {
              case 0:
                watch.end()
                watch = try ForeignDescriptor(pair.one)
              case 1...3:
                let count = pair.take(1)
                taken += max(0, count)
                sawEAGAIN = count < 0
              default:
                while case let count = pair.take(3), count > 0 { taken += count }
                sawEAGAIN = true
              }
              if taken < rounds { try watch.wait(for: .readable, afterEAGAIN: sawEAGAIN ? .readable : []) }
              sawEAGAIN = false
            }
            try writer.join()
          }
        }
      }
    }
    #expect(Bool(true), "\(run.replay)")
  }
}
