internal import CLinux
import Synchronization

#if canImport(Glibc)
import Glibc
#else
import Musl
#endif

/// Who waits for which descriptor, for a share of all numbers.
///
/// Invariants, under the lock: an entry exists exactly while at least one node is linked in it; a node that waits for a
/// number is linked in that number's entry. A claim through a node is made under the lock, and the waiting job takes the
/// lock before its frame goes (Waiter.swift, 4). DescriptorPoller.swift says why no wake-up is lost.
final class DescriptorTable: @unchecked Sendable {
  // Sound because the entries are under the lock.

  private struct Entry {
    var readers = WaitQueue()
    var writers = WaitQueue()

    var isEmpty: Bool { readers.first == nil && writers.first == nil }

    /// What all who wait want, once.
    var mask: UInt32 {
      let wantsReadable = readers.first == nil ? 0 : EventMask.readable
      let wantsWritable = writers.first == nil ? 0 : EventMask.writable
      return EventMask.oneShot | wantsReadable | wantsWritable
    }

    subscript(direction: Descriptor.Direction) -> WaitQueue {
      get { direction == .readable ? readers : writers }
      set { if direction == .readable { readers = newValue } else { writers = newValue } }
    }
  }

  private let epoll: Int32
  private let lock = SpinLock()
  @exclusivity(unchecked) private var entries: [Int32: Entry] = [:]

  init(_ epoll: Int32) { self.epoll = epoll }

  var count: Int { lock.withLock { entries.count } }

  /// Links a waiter and arms the descriptor.
  ///
  /// - Returns: 0, and the lock is held until `begin`; or an error number, and nothing has begun.
  func join(
    _ waiter: UnsafeMutablePointer<Waiter>,
    _ descriptor: Descriptor,
    _ direction: Descriptor.Direction
  ) -> Int32 {
    var woken = JobQueue()
    lock.lock()
    var entry = entries[descriptor.number] ?? Entry()
    entry[direction].append(waiter)
    let code = arm(descriptor, entry.mask)
    if code != 0 {
      entry[direction].remove(waiter)
      // Whoever waited for this number hears of it as well: they look, and find out for themselves.
      Self.wakeAll(&entry.readers, &woken)
      Self.wakeAll(&entry.writers, &woken)
    }
    entries[descriptor.number] = entry.isEmpty ? nil : entry
    guard code != 0 else { return 0 }
    lock.unlock()
    while let job = woken.popFirst() { Carrier.makeReady(job) }
    return code
  }

  /// Makes a linked waiter's wait known, and leaves the lock that `join` has taken.
  ///
  /// Nobody can have claimed it before: a waiter is found under the lock only.
  func begin(_ waiter: UnsafeMutablePointer<Waiter>, _ epoch: WaitEpoch) {
    waiter.pointee.epoch = epoch
    lock.unlock()
  }

  /// Unlinks the node of a wait that ended otherwise.
  ///
  /// Constant time, no system call.
  func leave(_ waiter: UnsafeMutablePointer<Waiter>, _ descriptor: Descriptor, _ direction: Descriptor.Direction) {
    lock.lock()
    defer { lock.unlock() }
    // Linked, it is in the number's current entry; woken and cancelled at once, it is in none.
    guard waiter.pointee.isLinked, var entry = entries[descriptor.number] else { return }
    entry[direction].remove(waiter)
    entries[descriptor.number] = entry.isEmpty ? nil : entry
  }

  /// Wakes those whom an event concerns, and arms again for the rest.
  func happened(_ events: UInt32, _ descriptor: Descriptor) {
    var woken = JobQueue()
    lock.lock()
    if var entry = entries[descriptor.number] {
      if events & (EventMask.readable | EventMask.gone) != 0 { Self.wakeAll(&entry.readers, &woken) }
      if events & (EventMask.writable | EventMask.gone) != 0 { Self.wakeAll(&entry.writers, &woken) }
      if !entry.isEmpty, arm(descriptor, entry.mask) != 0 {
        // Closed, most likely. Nothing will be heard of it any more.
        Self.wakeAll(&entry.readers, &woken)
        Self.wakeAll(&entry.writers, &woken)
      }
      entries[descriptor.number] = entry.isEmpty ? nil : entry
    }
    lock.unlock()
    while let job = woken.popFirst() { Carrier.makeReady(job) }
  }

  /// All of them: readiness is no value that one could take from the others, and one who was woken and then cancelled would
  /// have taken it along.
  private static func wakeAll(_ waiters: inout WaitQueue, _ woken: inout JobQueue) {
    while let waiter = waiters.popFirst() {
      let job = waiter.pointee.job.unsafelyUnwrapped
      if job.claim(waiter.pointee.epoch, waiter.pointee.reason) { woken.append(job) }
    }
  }

  /// Tells the kernel what to watch for; 0 or an error number.
  private func arm(_ descriptor: Descriptor, _ mask: UInt32) -> Int32 {
    clinux_poller_arm(epoll, descriptor.number, mask)
  }
}

/// The kernel's bits.
///
/// A hang-up and an error concern both directions and need not be asked for.
private enum EventMask {
  static var readable: UInt32 { CLINUX_POLL_READABLE.rawValue }
  static var writable: UInt32 { CLINUX_POLL_WRITABLE.rawValue }
  static var gone: UInt32 { CLINUX_POLL_HUNG_UP.rawValue | CLINUX_POLL_FAILED.rawValue }
  static var oneShot: UInt32 { CLINUX_POLL_ONCE.rawValue }
}
