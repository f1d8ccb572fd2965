import Glibc

/// Suspends until `fd` can be read without blocking, or its peer has closed.
///
/// A hang-up or an error counts as ready; the read then reports it. Returns at once, without suspending, if `fd` is
/// ready already, as a regular file always is. Otherwise an event of the kernel resumes the coroutine, which then
/// checks the descriptor again: the call returns only while `fd` is ready. Any number of coroutines may wait for one
/// descriptor, in both directions, and all are woken. One that comes too late finds no data and waits again, so `fd`
/// should be non-blocking.
///
/// <!-- compiled: Tests/CoroutineTests/Snippets/SymbolSnippets.swift -->
/// ```swift
/// while true {
///   let count = Glibc.read(descriptor, &bytes, bytes.count)
///   if count >= 0 { return Array(bytes.prefix(count)) }
///   let error = errno  // before the wait: afterwards it may be that of another thread
///   guard error == EAGAIN else { throw ErrnoError(error) }
///   try co_untilReadable(descriptor, assumingNotReady: true)
/// }
/// ```
///
/// - Parameters:
///   - fd: The descriptor.
///   - assumingNotReady: Whether a call of the caller has just found that `fd` is not ready. The first poll is then
///     left out, which saves a system call. If `fd` is ready nevertheless, the coroutine suspends and is resumed at
///     once.
/// - Throws: ``CoroutineError/badDescriptor`` if `fd` is not open. ``CoroutineError/cannotWatch`` if the kernel
///   refuses to watch it. ``CoroutineError/notInCoroutine`` outside a coroutine. If the coroutine is cancelled, it
///   throws at once, and leaves `fd` as it is.
///
/// A wait watches a duplicate of the descriptor and ends that again, which costs six system calls and one descriptor of
/// the process's limit. Code that waits often for the same descriptor uses CoroutineNet's `ForeignDescriptor`, which is
/// watched once.
///
/// The caller owns the descriptor, and should not close it while a coroutine waits for it: the wait then lasts until
/// the open file is ready, which its peer decides, or until it is cancelled or its deadline passes. Cancel the waiters
/// first, or shut a socket down first, which wakes them.
@available(*, noasync, message: "await the `value` of a coroutine that does this")
public func co_untilReadable(_ fd: Int32, assumingNotReady: Bool = false) throws {
  try Descriptor(fd).wait(until: .reading, looksFirst: !assumingNotReady)
}

/// Suspends until `fd` can be written without blocking, or its peer has closed.
///
/// In all other respects it behaves as ``co_untilReadable(_:assumingNotReady:)`` does.
@available(*, noasync, message: "await the `value` of a coroutine that does this")
public func co_untilWritable(_ fd: Int32, assumingNotReady: Bool = false) throws {
  try Descriptor(fd).wait(until: .writing, looksFirst: !assumingNotReady)
}

/// A descriptor of others: its number, and its state according to poll.
struct Descriptor {
  let number: Int32

  init(_ number: Int32) { self.number = number }

  /// Looks, waits, and looks again, by one ForeignWatch.
  ///
  /// An event is a hint: another coroutine may have taken what it announced, so only the look decides. Without
  /// `looksFirst` the first look is left out: the poller reports the readiness that the descriptor has already, and the
  /// duplication finds a number that is not open.
  func wait(until direction: WatchedDescriptor.Direction, looksFirst: Bool = true) throws {
    _ = try Carrier.beginWaiting()
    if looksFirst, try isReady() { return }
    // A simulated world waits for descriptors only where that is declared.
    try Host.requireReal { "a \(direction.waitKind) descriptor, \(number)" }
    let directions = ForeignWatch.Directions(direction)
    do {
      let watch = try ForeignWatch(number)
      defer { watch.watched.close() }
      repeat {
        _ = try watch.wait(for: directions, afterEAGAIN: directions)
      } while try !watch.isReady(directions)
    } catch WatchedDescriptor.Failure.system(let code) {
      try refuse(code)
    } catch let refusal as DescriptorRefusal {
      try refuse(refusal.code)
    }

    /// Makes a system call of about 0.3 µs, which never blocks.
    func isReady() throws -> Bool {
      // poll skips negative numbers instead of refusing them.
      guard number >= 0 else { throw CoroutineError.badDescriptor }
      var query = pollfd(fd: number, events: Int16(direction == .reading ? POLLIN : POLLOUT), revents: 0)
      // A poll that fails (no memory) has found nothing out; the poller will.
      guard poll(&query, 1, 0) > 0 else { return false }
      if query.revents & Int16(POLLNVAL) != 0 { throw CoroutineError.badDescriptor }
      return true
    }
  }

  private func refuse(_ code: Int32) throws {
    switch code {
    // Regular files, and other files that epoll refuses, are always ready.
    case EPERM: return
    case EBADF: throw CoroutineError.badDescriptor
    default: throw CoroutineError.cannotWatch(code)
    }
  }
}
