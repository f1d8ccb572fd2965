#if NIO
import Coroutine
import NIOConcurrencyHelpers
import NIOCore

/// The coroutines of one event loop.
final class LoopCoroutines: Sendable {
  let host: EventLoopHost
  let scheduler: HostedScheduler
  let drain: HostedDrain

  fileprivate init(_ loop: any EventLoop) {
    host = EventLoopHost(loop)
    scheduler = HostedScheduler(host)
    drain = scheduler.drain
  }

  /// Opens the host before its first drain, for a coroutine that starts at once: the loop's shutdown then finds it.
  ///
  /// Called on the loop's thread.
  func openNow() {
    if host.state == EventLoopHost.Word.fresh { host.open(drain) }
  }
}

/// The event loops that have, or had, coroutines.
///
/// An entry retains its loop, so no other loop gets the address of a loop in the table. The entry is removed when the
/// loop has been shut down.
enum LoopTable {
  // One lock for all loops, and a dictionary: taken once for each launch from outside, and once for each channel.
  private static let entries = NIOLockedValueBox<[ObjectIdentifier: LoopCoroutines]>([:])

  /// Returns the coroutines of `loop`, in constant time.
  static func coroutines(of loop: any EventLoop) -> LoopCoroutines {
    let key = ObjectIdentifier(loop)
    if let known = entries.withLockedValue({ $0[key] }) { return known }
    // Created outside the lock, because it allocates, and calls the loop for its name. Another thread may be faster.
    let made = LoopCoroutines(loop)
    return entries.withLockedValue { entries in
      if let known = entries[key] { return known }
      entries[key] = made
      return made
    }
  }

  /// Removes a loop that was shut down.
  ///
  /// A later launch on the loop creates another entry, whose first call the loop refuses.
  static func remove(_ host: EventLoopHost) {
    let removed = entries.withLockedValue { entries in
      let key = ObjectIdentifier(host.loop)
      return entries[key]?.host === host ? entries.removeValue(forKey: key) : nil
    }
    // The entry releases the loop, perhaps for the last time, so that must happen outside the lock.
    withExtendedLifetime(removed) {}
  }
}
#endif
