import Glibc
import Testing

@testable import Coroutine
@testable import CoroutineNet

/// Two ends of a local stream, as another library would have them: their numbers alone, non-blocking.
final class ForeignPair: Sendable {
  let one: Int32
  let other: Int32

  init() throws {
    var ends: [Int32] = [-1, -1]
    try #require(socketpair(AF_UNIX, Int32(SOCK_STREAM.rawValue | SOCK_NONBLOCK.rawValue), 0, &ends) == 0)
    (one, other) = (ends[0], ends[1])
  }

  deinit {
    close(one)
    close(other)
  }

  func send(_ bytes: [UInt8] = [1]) { #expect(write(other, bytes, bytes.count) == bytes.count) }
  /// Sends a byte; false if there is no room for it.
  func trySend() -> Bool { write(other, [1], 1) == 1 }
  /// The number of bytes that one read returns; -1 if it would block.
  func take(_ most: Int = 100) -> Int {
    var bytes = [UInt8](repeating: 0, count: most)
    return read(one, &bytes, most)
  }
  /// Writes until nothing more fits.
  func fill() { while write(one, [UInt8](repeating: 0, count: 4_096), 4_096) > 0 {} }
  /// Reads everything at the other end.
  func drain() {
    var bytes = [UInt8](repeating: 0, count: 4_096)
    while read(other, &bytes, 4_096) > 0 {}
  }
}

extension ForeignDescriptor {
  func untilAwaited(_ direction: WatchedDescriptor.Direction) throws {
    while !watch.watched.isAwaited(direction) { try co_yield() }
  }
  func isAwaited(_ direction: WatchedDescriptor.Direction) -> Bool { watch.watched.isAwaited(direction) }
}

@Suite("A descriptor of another library", .timeLimit(.minutes(10)))
struct ForeignDescriptorTests {
  @Test func `a wait returns at once for what is ready, and otherwise when it becomes ready`() async throws {
    try await onCoroutine {
      let pair = try ForeignPair()
      let watch = try ForeignDescriptor(pair.one)
      #expect(try watch.wait(for: []) == [])
      #expect(try watch.wait(for: [.readable, .writable]) == .writable)
      pair.send()
      #expect(try watch.wait(for: .readable) == .readable)
      #expect(try watch.wait(for: [.readable, .writable]) == [.readable, .writable])
      #expect(pair.take() == 1)
      let job = co_launch { try watch.wait(for: .readable) }
      try watch.untilAwaited(.reading)
      pair.send()
      #expect(try job.join() == .readable)
    }
  }

  @Test func `input that the library has left in the socket is found by the next wait`() async throws {
    try await onCoroutine {
      let pair = try ForeignPair()
      let watch = try ForeignDescriptor(pair.one)
      let job = co_launch { () -> Int in
        // Each round takes one byte of three, so only the first has an event.
        var rounds = 0
        while rounds < 3 {
          try watch.wait(for: .readable)
          #expect(pair.take(1) == 1)
          rounds += 1
        }
        return rounds
      }
      try watch.untilAwaited(.reading)
      pair.send([1, 2, 3])
      #expect(try job.join() == 3)
    }
  }

  @Test func `bytes that come between EAGAIN and the wait end the wait`() async throws {
    try await onCoroutine {
      let pair = try ForeignPair()
      let watch = try ForeignDescriptor(pair.one)
      // The first wait of all, and then others.
      for _ in 0..<20 {
        #expect(pair.take() == -1)
        pair.send()
        #expect(try watch.wait(for: .readable, afterEAGAIN: .readable) == .readable)
        while pair.take() > 0 {}
      }
    }
  }

  @Test func `EAGAIN of one coroutine does not hide an event that another one has seen since`() async throws {
    try await onCoroutine {
      let pair = try ForeignPair()
      let watch = try ForeignDescriptor(pair.one)
      // What this coroutine knows of is its own EAGAIN, before the byte.
      #expect(pair.take() == -1)
      let other = co_launch { try watch.wait(for: .readable) }
      try watch.untilAwaited(.reading)
      pair.send()
      #expect(try other.join() == .readable)
      // The other one does not read the byte. So this wait must not assume that nothing is there.
      #expect(try watch.wait(for: .readable, afterEAGAIN: .readable) == .readable)
    }
  }

  @Test func `a wait for both directions ends by either, and leaves no waiter`() async throws {
    try await onCoroutine {
      let pair = try ForeignPair()
      let watch = try ForeignDescriptor(pair.one)
      pair.fill()
      for isRead in [true, false] {
        let job = co_launch { try watch.wait(for: [.readable, .writable], afterEAGAIN: [.readable, .writable]) }
        try watch.untilAwaited(.reading)
        try watch.untilAwaited(.writing)
        if isRead { pair.send() } else { pair.drain() }
        #expect(try job.join().contains(isRead ? .readable : .writable))
        #expect(!watch.isAwaited(.reading) && !watch.isAwaited(.writing))
        while pair.take() > 0 {}
      }
      pair.fill()
      let job = co_launch { try watch.wait(for: [.readable, .writable]) }
      try watch.untilAwaited(.writing)
      job.cancel()
      #expect(throws: CancellationError.self) { try job.join() }
      #expect(!watch.isAwaited(.reading) && !watch.isAwaited(.writing))
    }
  }

  @Test func `the end of the peer is readable, and an error is both`() async throws {
    try await onCoroutine {
      let pair = try ForeignPair()
      let watch = try ForeignDescriptor(pair.one)
      let job = co_launch { try watch.wait(for: .readable) }
      try watch.untilAwaited(.reading)
      shutdown(pair.other, Int32(SHUT_RDWR))
      #expect(try job.join() == .readable)
      #expect(pair.take() == 0)
      #expect(try watch.wait(for: [.readable, .writable]) == [.readable, .writable])
    }
  }

  @Test func `select cases of both directions are ready, wait, and end with the object`() async throws {
    try await onCoroutine {
      let pair = try ForeignPair()
      let watch = try ForeignDescriptor(pair.one)
      func choose(_ time: Duration = .seconds(60)) throws -> String {
        try co_select(biased: true) {
          watch.onReadable { "readable" }
          watch.onWritable { "writable" }
            .onTimeout(time) { "timeout" }
        }
      }
      #expect(try choose() == "writable")
      pair.fill()
      #expect(try choose(.zero) == "timeout")
      let job = co_launch { try choose() }
      try watch.untilAwaited(.writing)
      pair.send()
      #expect(try job.join() == "readable")
      let ended = co_launch { netError { try co_select { watch.onWritable {} } } }
      try watch.untilAwaited(.writing)
      watch.end()
      #expect(try ended.join() == .closed)
      #expect(netError { try choose() } == .closed)
    }
  }

  @Test func `after the end, and at it, a wait throws, and the library's descriptor stays open`() async throws {
    try await onCoroutine {
      let pair = try ForeignPair()
      let watch = try ForeignDescriptor(pair.one)
      let jobs = (0..<3).map { _ in co_launch { netError { try watch.wait(for: .readable) } } }
      try watch.untilAwaited(.reading)
      watch.end()
      watch.end()
      for job in jobs { #expect(try job.join() == .closed) }
      #expect(netError { try watch.wait(for: .writable) } == .closed)
      pair.send()
      #expect(pair.take() == 1)
    }
  }

  @Test func `a descriptor that cannot be watched is refused`() throws {
    #expect(code { try ForeignDescriptor(-1) } == EBADF)
    #expect(code { try ForeignDescriptor(1_000_000) } == EBADF)
    for path in ["/", "/proc/self/exe"] {
      let number = open(path, O_RDONLY)
      defer { close(number) }
      #expect(code { try ForeignDescriptor(number) } == EPERM)
    }
    let pair = try ForeignPair()
    let watch = try ForeignDescriptor(pair.one)
    #expect(failure { try watch.wait(for: .writable) } as? CoroutineError == .notInCoroutine)
  }
}
