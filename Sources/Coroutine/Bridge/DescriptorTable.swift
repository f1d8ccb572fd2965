internal import CLinux
import Glibc
import Synchronization

/// The waiters of each descriptor, for a share of all numbers.
///
/// Invariants, under the lock: an entry exists exactly while at least one waiter is linked in it. A waiter for a number
/// is linked in that number's entry. A claim is made under the lock, and the waiting job takes the lock before its
/// frame goes (Waiter.swift, 4). DescriptorPoller.swift says why no wake-up is lost.
final class DescriptorTable: @unchecked Sendable {
  // Sound because the entries are under the lock.

  private struct Entry {
    var readers = WaitQueue()
    var writers = WaitQueue()

    var isEmpty: Bool { readers.first == nil && writers.first == nil }

    /// The events that the waiters need, reported once.
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
  private let lock = ThreadLock()
  @exclusivity(unchecked) private var entries: [Int32: Entry] = [:]

  init(_ epoll: Int32) { self.epoll = epoll }

  var count: Int { lock.withLock { entries.count } }

  /// Links a waiter and arms the descriptor.
  ///
  /// - Returns: 0, with the lock held until `begin`; or an error number, and then nothing has begun.
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
      // The other waiters of this number are woken too: each checks the descriptor, and finds the error itself.
      Self.wakeAll(&entry.readers, &woken)
      Self.wakeAll(&entry.writers, &woken)
    }
    entries[descriptor.number] = entry.isEmpty ? nil : entry
    guard code != 0 else { return 0 }
    lock.unlock()
    while let job = woken.popFirst() { Carrier.makeReady(job) }
    return code
  }

  /// Publishes the wait of a linked waiter, and leaves the lock that `join` has taken.
  ///
  /// No thread can have claimed it before: a waiter is found under the lock only.
  func begin(_ waiter: UnsafeMutablePointer<Waiter>, _ epoch: WaitEpoch) {
    waiter.pointee.epoch = epoch
    lock.unlock()
  }

  /// Unlinks the waiter of a wait that ended for another reason.
  ///
  /// Constant time, no system call.
  func leave(_ waiter: UnsafeMutablePointer<Waiter>, _ descriptor: Descriptor, _ direction: Descriptor.Direction) {
    lock.lock()
    defer { lock.unlock() }
    // A linked waiter is in the number's current entry. A waiter that was woken and then cancelled is in no entry.
    guard waiter.pointee.isLinked, var entry = entries[descriptor.number] else { return }
    entry[direction].remove(waiter)
    entries[descriptor.number] = entry.isEmpty ? nil : entry
  }

  /// Wakes the waiters that an event concerns, and arms again for the others.
  func happened(_ events: UInt32, _ descriptor: Descriptor) {
    var woken = JobQueue()
    lock.lock()
    if var entry = entries[descriptor.number] {
      if events & (EventMask.readable | EventMask.gone) != 0 { Self.wakeAll(&entry.readers, &woken) }
      if events & (EventMask.writable | EventMask.gone) != 0 { Self.wakeAll(&entry.writers, &woken) }
      if !entry.isEmpty, arm(descriptor, entry.mask) != 0 {
        // The descriptor was probably closed. No further event will come.
        Self.wakeAll(&entry.readers, &woken)
        Self.wakeAll(&entry.writers, &woken)
      }
      entries[descriptor.number] = entry.isEmpty ? nil : entry
    }
    lock.unlock()
    while let job = woken.popFirst() { Carrier.makeReady(job) }
  }

  /// Wakes all waiters: readiness is not a value that one of them takes away, and a waiter that is cancelled after its
  /// wake-up must not take it away either.
  private static func wakeAll(_ waiters: inout WaitQueue, _ woken: inout JobQueue) {
    while let waiter = waiters.popFirst() {
      let job = waiter.pointee.job.unsafelyUnwrapped
      if job.claim(waiter.pointee.epoch, waiter.pointee.reason) { woken.append(job) }
    }
  }

  /// Tells the kernel what to watch for, and returns 0 or an error number.
  private func arm(_ descriptor: Descriptor, _ mask: UInt32) -> Int32 {
    clinux_poller_arm(epoll, descriptor.number, mask)
  }
}

/// The kernel's event bits.
///
/// A hang-up and an error concern both directions, and are reported without being requested.
private enum EventMask {
  static var readable: UInt32 { CLINUX_POLL_READABLE.rawValue }
  static var writable: UInt32 { CLINUX_POLL_WRITABLE.rawValue }
  static var gone: UInt32 { CLINUX_POLL_HUNG_UP.rawValue | CLINUX_POLL_FAILED.rawValue }
  static var oneShot: UInt32 { CLINUX_POLL_ONCE.rawValue }
}
