#if NIO
@_spi(Hosting) import Coroutine
import NIOConcurrencyHelpers
import NIOCore
import Synchronization

/// The coroutines of one event loop.
final class LoopCoroutines: Sendable {
  let host: EventLoopHost
  let scheduler: HostedScheduler
  let drain: HostedDrain

  fileprivate init(_ loop: any EventLoop) {
    host = EventLoopHost(loop)
    scheduler = HostedScheduler(host)
    drain = scheduler.drain
    host.attach(self)
  }

  /// Makes this the coroutines of a loop that was shut down: every launch fails.
  ///
  /// Called before another thread has it.
  fileprivate func end() {
    host.word.store(EventLoopHost.Word.closed, ordering: .relaxed)
    drain.end(EventLoopError.shutdown)
  }

  /// Opens the host before its first drain, for a coroutine that starts at once: the loop's shutdown then finds it.
  ///
  /// Called on the loop's thread.
  func openNow() {
    if host.state == EventLoopHost.Word.fresh { host.open() }
  }
}

/// The event loops that have, or had, coroutines.
///
/// An entry retains its loop, so no other loop gets the address of a loop in the table. It retains the coroutines, on
/// which the host relies (EventLoopHost.swift, invariant 5). The entry is removed when the loop has been shut down, and
/// the host is CLOSED. From then on the table has a weak reference, so that no later launch calls the loop: NIO reports
/// such a call as an error of the program, and ends the process if SWIFTNIO_STRICT is set.
enum LoopTable {
  private struct Ended {
    weak var loop: (any EventLoop)?
  }

  private struct Loops {
    var entries: [ObjectIdentifier: LoopCoroutines] = [:]
    var ended: [ObjectIdentifier: Ended] = [:]
  }

  // One lock for all loops, and a dictionary: taken once for each launch from outside, and once for each channel.
  private static let loops = NIOLockedValueBox(Loops())

  /// Returns the coroutines of `loop`, in constant time.
  static func coroutines(of loop: any EventLoop) -> LoopCoroutines {
    let key = ObjectIdentifier(loop)
    if let known = loops.withLockedValue({ $0.entries[key] }) { return known }
    // Created outside the lock, because it allocates, and calls the loop for its name. Another thread may be faster.
    let made = LoopCoroutines(loop)
    let (coroutines, hasEnded) = loops.withLockedValue { loops in
      if let known = loops.entries[key] { return (known, false) }
      if loops.ended[key]?.loop === loop { return (made, true) }
      loops.entries[key] = made
      return (made, false)
    }
    if hasEnded { coroutines.end() }
    return coroutines
  }

  /// Removes a loop that was shut down.
  static func remove(_ host: EventLoopHost) {
    let removed: LoopCoroutines? = loops.withLockedValue { loops in
      let key = ObjectIdentifier(host.loop)
      guard loops.entries[key]?.host === host else { return nil }
      loops.ended = loops.ended.filter { $0.value.loop != nil }
      loops.ended[key] = Ended(loop: host.loop)
      return loops.entries.removeValue(forKey: key)
    }
    // The entry releases the loop, perhaps for the last time, so that must happen outside the lock.
    withExtendedLifetime(removed) {}
  }
}
#endif
