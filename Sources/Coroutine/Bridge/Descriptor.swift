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
/// - Throws: ``CoroutineError/badDescriptor`` if `fd` is not open. ``CoroutineError/cannotWatch(_:)`` if the kernel
///   refuses to watch it. ``CoroutineError/notInCoroutine`` outside a coroutine. If the coroutine is cancelled, it
///   throws at once, and leaves `fd` as it is.
///
/// The caller owns the descriptor, and must not close it while a coroutine waits for it. The kernel does not report a
/// close, so the wait then lasts until it is cancelled, its deadline passes, or the number is used again. Cancel the
/// waiters first, or shut a socket down first, which wakes them.
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
  typealias Direction = WatchedDescriptor.Direction

  enum Readiness {
    case ready
    case notYet
    case notOpen
  }

  /// The result of a wait for an event, if it did not throw.
  enum EventResult {
    case checkAgain
    case alwaysReady
  }

  let number: Int32

  init(_ number: Int32) { self.number = number }

  /// Checks, waits, and checks again.
  ///
  /// A wake-up may come from a stale event, so only the check decides.
  ///
  /// Without `looksFirst`, the first check is left out: the poller reports the readiness that the descriptor has
  /// already, and finds a number that is not open.
  func wait(until direction: Direction, looksFirst: Bool = true) throws {
    _ = try Carrier.beginWaiting()
    var isKnown = !looksFirst
    while true {
      switch isKnown ? .notYet : readiness(direction) {
      case .ready: return
      case .notOpen: throw CoroutineError.badDescriptor
      case .notYet:
        isKnown = false
        if try waitForEvent(direction) == .alwaysReady { return }
      }
    }
  }

  /// Returns the current state.
  ///
  /// Makes a system call of about 0.3 µs, which never blocks.
  private func readiness(_ direction: Direction) -> Readiness {
    // poll skips negative numbers instead of refusing them.
    guard number >= 0 else { return .notOpen }
    var query = pollfd(fd: number, events: Int16(direction == .reading ? POLLIN : POLLOUT), revents: 0)
    // A poll that fails (no memory) has checked nothing; the poller will.
    guard poll(&query, 1, 0) > 0 else { return .notYet }
    return query.revents & Int16(POLLNVAL) != 0 ? .notOpen : .ready
  }

  /// Suspends the running coroutine until it must check the descriptor again (DescriptorTable.swift).
  func waitForEvent(_ direction: Direction) throws -> EventResult {
    // Read again at each wait: since its wake-up, the job may have moved to another thread, or been cancelled.
    let (carrier, job) = try Carrier.beginWaiting()
    // A simulated world waits for descriptors only where that is declared.
    try Host.requireReal { "a \(direction.waitKind) descriptor, \(number)" }
    let table = DescriptorTable.of(number)
    var waiter = Waiter(job: job)
    return try withUnsafeMutablePointer(to: &waiter) { waiter in
      let code: Int32
      do { code = try table.join(waiter, number, direction) } catch let refusal as DescriptorRefusal {
        // There is no poller: that says nothing of the descriptor.
        throw CoroutineError.cannotWatch(refusal.code)
      }
      switch code {
      case 0: break
      case EPERM: return .alwaysReady
      case EBADF: throw CoroutineError.badDescriptor
      default: throw CoroutineError.cannotWatch(code)
      }
      try WaitQueue.park(carrier, job, direction.waitKind, for: UInt(bitPattern: Int(number))) { epoch in
        table.begin(waiter, epoch)
      } withdraw: {
        table.leave(waiter, number, direction)
      }
      return .checkAgain
    }
  }
}
