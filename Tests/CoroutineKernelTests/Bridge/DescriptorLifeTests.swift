import Dispatch
import Glibc
import Testing

@testable import Coroutine

/// Closes `number` and opens `file` under it.
private func reuse(_ number: Int32, for file: Int32) {
  let answer = dup2(file, number)
  precondition(answer == number, "dup2 failed: errno \(errno)")
}

/// A second number for `file`, so high that no test beside this one is given it after a close.
private func number(for file: Int32, from least: Int32) -> Int32 {
  let number = fcntl(file, F_DUPFD_CLOEXEC, least)
  precondition(number >= 0, "F_DUPFD failed: errno \(errno)")
  return number
}

/// An event counter.
///
/// Swift's C library module leaves eventfd out, so it is looked up.
private func eventDescriptor() throws -> Int32 {
  typealias Make = @convention(c) (UInt32, Int32) -> Int32
  let symbol = try #require(dlsym(nil, "eventfd"))
  return unsafeBitCast(symbol, to: Make.self)(0, O_NONBLOCK | O_CLOEXEC)
}

@Suite("Waiting for descriptors: closing and reuse", .timeLimit(.minutes(10)))
struct DescriptorLifeTests {
  @Test func `an eventfd wakes its reader when it is signalled`() async throws {
    let event = try eventDescriptor()
    defer { close(event) }
    let value = try await onSerialQueue {
      let reader = try launchAndPark {
        try co_untilReadable(event)
        var value: UInt64 = 0
        return read(event, &value, 8) == 8 ? value : 0
      }
      var one: UInt64 = 41
      _ = write(event, &one, 8)
      return try reader.join()
    }
    #expect(value == 41)
  }

  @Test func `a listening socket wakes the accepting coroutine`() async throws {
    let listener = socket(AF_INET, Int32(SOCK_STREAM.rawValue | SOCK_NONBLOCK.rawValue), 0)
    defer { close(listener) }
    var address = sockaddr_in()
    address.sin_family = sa_family_t(AF_INET)
    address.sin_addr.s_addr = UInt32(0x7F00_0001).bigEndian
    var length = socklen_t(MemoryLayout<sockaddr_in>.size)
    let port = withUnsafeMutableBytes(of: &address) { bytes in
      let address = bytes.baseAddress!.assumingMemoryBound(to: sockaddr.self)
      return bind(listener, address, length) | listen(listener, 8) | getsockname(listener, address, &length)
    }
    #expect(port == 0)
    let target = address
    let accepted = try await onSerialQueue {
      let server = try launchAndPark {
        try co_untilReadable(listener)
        return accept(listener, nil, nil)
      }
      let client = socket(AF_INET, Int32(SOCK_STREAM.rawValue | SOCK_NONBLOCK.rawValue), 0)
      defer { close(client) }
      var address = target
      _ = withUnsafeBytes(of: &address) { bytes in
        connect(client, bytes.baseAddress!.assumingMemoryBound(to: sockaddr.self), length)
      }
      try co_untilWritable(client)
      var failure: Int32 = -1
      var size = socklen_t(4)
      getsockopt(client, SOL_SOCKET, SO_ERROR, &failure, &size)
      #expect(failure == 0)
      let accepted = try server.join()
      close(accepted)
      return accepted
    }
    #expect(accepted >= 0)
  }

  @Test func `a number that is reused during a wait is another file for later waits only`() async throws {
    let (old, new) = (PipePair(), PipePair())
    let shared = number(for: old.reader, from: 840)
    defer { close(shared) }
    let seen = try await onSerialQueue {
      let early = try launchAndPark { try co_untilReadable(shared) }
      reuse(shared, for: new.reader)
      let late = try launchAndPark {
        try co_untilReadable(shared)
        return new.get()
      }
      new.put(9)
      let seen = try late.join()
      #expect(!early.isFinished)
      old.put(1)
      try early.join()
      return seen
    }
    #expect(seen == 9)
  }

  @Test func `an event of the old file does not end a wait for the new file with the same number`() async throws {
    let (old, new) = (PipePair(), PipePair())
    let shared = number(for: old.reader, from: 860)
    defer { close(shared) }
    let trace = Trace()
    try await onSerialQueue {
      let early = try launchAndPark { try co_untilReadable(shared) }
      early.cancel()
      _ = outcome { try early.join() }
      reuse(shared, for: new.reader)
      let late = try launchAndPark {
        try co_untilReadable(shared)
        trace("read \(new.get() ?? 0)")
      }
      old.put(1)
      // The kernel's events arrive in the order in which things happened: when this one is here, the old one was.
      let other = PipePair()
      let marker = try launchAndPark { try co_untilReadable(other.reader) }
      other.put()
      try marker.join()
      trace("writing")
      new.put(2)
      try late.join()
    }
    #expect(trace.all == ["writing", "read 2"])
  }

  // A test that closes a number runs in a process of its own: elsewhere another test could be given the number at once.

  // The descriptor is the kernel's, and so is the clock of the deadline.
  @Test(.tags(.realClock))
  func `a wait for a closed descriptor can be cancelled, times out, and leaves nothing behind`() async {
    await #expect(processExitsWith: .success) {
      let pipe = PipePair()
      let closed = number(for: pipe.reader, from: 880)
      let seen = try await onSerialQueue {
        let wait: @Sendable () throws -> Void = { try Descriptor(closed).wait(until: .reading) }
        let quits = try launchAndPark { try wait() }
        let expires = try launchAndPark { try co_timeout(.milliseconds(1)) { try wait() } }
        #expect(isWaitedFor(closed))
        close(closed)
        quits.cancel(Oops("quit"))
        return [outcome { try quits.join() }, outcome { try expires.join() }]
      }
      #expect(seen == ["Oops(quit)", "TimeoutError"])
      #expect(!isWaitedFor(closed))
    }
  }

  @Test func `files that epoll does not support count as ready`() async throws {
    for path in ["/proc/self/exe", "/dev/null"] {
      let file = open(path, O_RDONLY)
      defer { close(file) }
      try await onCoroutine { try Descriptor(file).wait(until: .reading, looksFirst: false) }
    }
  }

  @Test func `a wait leaves no descriptor open, however it ends`() async {
    // In a process of its own, whose descriptors no other test changes.
    await #expect(processExitsWith: .success) {
      let pipe = PipePair()
      try await onSerialQueue {
        func openDescriptors() -> Int { (0..<1_024).count { fcntl($0, F_GETFD) >= 0 } }
        // The poller's descriptors are there from the first wait on.
        pipe.put()
        try co_untilReadable(pipe.reader, assumingNotReady: true)
        pipe.drain()
        // Dispatch makes those of its timers on a thread of its own.
        while !FirstTimer.shared.works { try co_yield() }
        let before = openDescriptors()
        let ends = try launchAndPark { try co_untilReadable(pipe.reader) }
        let quits = try launchAndPark { try co_untilReadable(pipe.reader) }
        #expect(openDescriptors() == before + 2)
        quits.cancel()
        _ = outcome { try quits.join() }
        pipe.put()
        try ends.join()
        #expect(openDescriptors() == before)
      }
    }
  }

  @Test func `an error of the kernel names the limit to raise`() {
    #expect(CoroutineError.cannotWatch(ENOSPC).description.contains("fs.epoll.max_user_watches"))
    #expect(CoroutineError.cannotWatch(EMFILE).description.contains("RLIMIT_NOFILE"))
    #expect(CoroutineError.cannotWatch(ENFILE).description.contains("fs.file-max"))
    #expect(CoroutineError.cannotWatch(ENOMEM).description.contains("memory"))
    #expect(CoroutineError.cannotWatch(EINVAL).description.contains("error \(EINVAL)"))
  }
}
