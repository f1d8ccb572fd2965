#if canImport(Glibc)
import Glibc
#else
import Musl
#endif

/// Suspends until `fd` can be read from without blocking, or its peer is gone: a hang-up or an error counts as ready, and the
/// read then says which.
///
/// Returns at once, without suspending, where that is so already, as it always is with regular files. Otherwise the kernel's
/// word resumes the coroutine, after a second look at the descriptor: it returns only while `fd` is ready. Any number of
/// coroutines may wait for one descriptor, in both directions, and all of them are woken; who comes late to the data finds
/// none and waits again, so `fd` should be non-blocking.
///
/// Cancelled, it throws at once and leaves the descriptor alone. A descriptor that is not open throws
/// ``CoroutineError/badDescriptor``; off a coroutine ``CoroutineError/notInCoroutine``. Where the kernel refuses to watch a
/// descriptor, ``DescriptorWaitFailed``.
///
/// The descriptor stays the caller's, who must not close it while a coroutine waits for it: the kernel tells nobody of a
/// close, so the wait then lasts until it is cancelled, or its deadline passes, or the number is used again. Cancel the
/// waiters first, or shut a socket down first, which wakes them.
public func co_wait(readable fd: Int32) throws { try Descriptor(fd).wait(until: .readable) }

/// Suspends until `fd` can be written to without blocking, or its peer is gone.
///
/// In all else as ``co_wait(readable:)``.
public func co_wait(writable fd: Int32) throws { try Descriptor(fd).wait(until: .writable) }

/// The kernel cannot watch another descriptor.
public struct DescriptorWaitFailed: Error, Equatable, CustomStringConvertible {
  /// The system's error number.
  public var code: Int32

  /// Creates the error.
  public init(code: Int32) { self.code = code }

  /// What happened and what to do about it, in one sentence.
  public var description: String {
    let what = "the kernel refused to watch a descriptor"
    return switch code {
    case ENOSPC: "\(what): this user watches as many as it may; raise the sysctl fs.epoll.max_user_watches"
    case EMFILE: "\(what): the process has no descriptor left for that; raise RLIMIT_NOFILE (ulimit -n)"
    case ENFILE: "\(what): the system has no descriptor left for that; raise the sysctl fs.file-max"
    case ENOMEM: "\(what): it is out of memory; wait for fewer descriptors at once"
    default: "\(what): \(String(cString: strerror(code))) (error \(code))"
    }
  }
}

/// A descriptor's number and what poll says of it.
struct Descriptor {
  enum Direction {
    case readable
    case writable

    var waitKind: WaitKind { self == .readable ? .readable : .writable }
  }

  enum Readiness {
    case ready
    case notYet
    case notOpen
  }

  let number: Int32

  init(_ number: Int32) { self.number = number }

  /// Looks, waits, looks again: whatever woke the wait, a stale event included, only the look decides.
  ///
  /// `poller` nil: the process's, which is made only if there is something to wait for.
  func wait(until direction: Direction, with poller: DescriptorPoller? = nil) throws {
    _ = try Carrier.beginWaiting()
    while true {
      switch readiness(direction) {
      case .ready: return
      case .notOpen: throw CoroutineError.badDescriptor
      case .notYet:
        let poller = try poller ?? DescriptorPoller.shared()
        if try poller.wait(for: self, direction) == .alwaysReady { return }
      }
    }
  }

  /// How things are now.
  ///
  /// A system call of about 0.3 µs that never blocks.
  private func readiness(_ direction: Direction) -> Readiness {
    // poll skips negative numbers instead of refusing them.
    guard number >= 0 else { return .notOpen }
    var query = pollfd(fd: number, events: Int16(direction == .readable ? POLLIN : POLLOUT), revents: 0)
    // A failing poll (no memory) has not looked; the poller will.
    guard poll(&query, 1, 0) > 0 else { return .notYet }
    return query.revents & Int16(POLLNVAL) != 0 ? .notOpen : .ready
  }
}
