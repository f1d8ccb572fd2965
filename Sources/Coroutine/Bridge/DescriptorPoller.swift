internal import CLinux
import Dispatch
import Glibc
import Synchronization

// How the kernel wakes coroutines: the process has one epoll instance, watched by one Dispatch source.
//
// The state of a descriptor in the epoll instance (the kernel has it; this side keeps no copy):
//
//             ADD                    an event is collected (EPOLLONESHOT)
//   ABSENT ---------> ARMED(mask) -------------------------------------> DISARMED
//     ^                 |   ^ |                                             |
//     |                 |   +-+ MOD: another waiter joins                   | MOD: a new waiter joins
//     |                 |   +-----------------------------------------------+
//     +-----------------+---- the file is closed, from any state
//
// Its entry in a table (this side, DescriptorTable.swift) exists exactly while a waiter waits for it:
//
//   NONE --the first waiter joins--> WAITED FOR --the last waiter is woken or leaves--> NONE
//
// Invariants
//  1. One critical section of the entry's table links a waiter, computes the mask and calls epoll_ctl. So after each
//     such section that leaves waiters, the kernel has been told to watch at least for all of them, since the last one
//     joined.
//  2. Each wait calls epoll_ctl: MOD, or ADD if the kernel does not know the pair of number and file. No assumption
//     about a number is kept, so a number that was closed and used again is never taken for the old file.
//  3. Events are hints. A woken coroutine checks again with poll (Descriptor.swift), and waits again if it is not
//     ready.
//
// Why no wake-up is lost. Let W link itself and arm. The kernel checks the file within epoll_ctl, so earlier readiness
// counts, and later readiness fires: the armed descriptor yields an event. Only `collect` takes events, on one serial
// queue. If it took an event before W armed, W's arming is newer than the kernel's disarming, and stands. If it took
// one after that, W is in the table when `collect` gets its lock, because W armed under it, and is woken. Waking some
// waiters disarms for all (one shot). So `collect` arms again, in the same critical section, for the waiters of the
// other direction. A waiter that joins later arms for all of them.
//
// Stale state is harmless. An armed descriptor whose waiters have all left yields one event, which finds no entry and
// disarms it. An event of an old file wakes the current waiters of its number, which check and wait again. So leaving
// needs no system call. A waiter of a closed descriptor stays in its entry until it is cancelled; it unlinks itself, as
// any other.
//
// Every event is taken: the source fires while the epoll instance holds events (level-triggered), so a batch that
// was not taken completely is continued at the next firing.

final class DescriptorPoller: @unchecked Sendable {
  // Sound because nothing changes after `init`. The source is thread-safe, and only the deinit cancels it.

  /// The result of `wait`, if it did not throw.
  enum WaitResult {
    case checkAgain
    case alwaysReady
  }

  private static let lock = SpinLock()
  // Sound because it is read and written under `lock`.
  nonisolated(unsafe) private static var made: DescriptorPoller?

  /// Returns the poller of the process.
  ///
  /// Created at the first wait. If no descriptor is free, a later wait creates it.
  static func shared() throws -> DescriptorPoller {
    if let made = lock.withLock({ made }) { return made }
    let mine = try DescriptorPoller()
    // If two threads have created a poller at once, the one that is not stored closes its descriptor.
    return lock.withLock {
      if let made { return made }
      made = mine
      return mine
    }
  }

  private let epoll: Int32
  private let source: any DispatchSourceRead
  /// Chosen by the low bits of the number: a wait makes a system call under its table's lock, which should not delay
  /// others.
  private let tables: [DescriptorTable]
  private static var tableCount: Int { 16 }

  init() throws {
    let epoll = clinux_poller()
    guard epoll >= 0 else { throw DescriptorWaitFailed(code: errno) }
    self.epoll = epoll
    let tables = (0..<Self.tableCount).map { _ in DescriptorTable(epoll) }
    self.tables = tables
    source = DispatchSource.makeReadSource(fileDescriptor: epoll, queue: DispatchQueue(label: "coroutine.descriptors"))
    source.setEventHandler { Self.collect(epoll, tables) }
    source.setCancelHandler { close(epoll) }
    source.activate()
  }

  deinit { source.cancel() }

  /// The number of descriptors that have waiters.
  var count: Int { tables.reduce(0) { $0 + $1.count } }

  private static func table(_ descriptor: Descriptor, _ tables: [DescriptorTable]) -> DescriptorTable {
    tables[Int(descriptor.number) & (tableCount - 1)]
  }

  /// Suspends the running coroutine until it must check the descriptor again.
  func wait(for descriptor: Descriptor, _ direction: Descriptor.Direction) throws -> WaitResult {
    // Read again at each wait: since its wake-up, the job may have moved to another thread, or been cancelled.
    let (carrier, job) = try Carrier.beginWaiting()
    // A simulated world waits for descriptors only where that is declared.
    try Host.requireReal(job) { "a \(direction) descriptor, \(descriptor.number)" }
    let table = Self.table(descriptor, tables)
    var waiter = Waiter(job: job)
    return try withUnsafeMutablePointer(to: &waiter) { waiter in
      let code = table.join(waiter, descriptor, direction)
      guard code == 0 else {
        switch code {
        case EPERM: return .alwaysReady
        case EBADF: throw CoroutineError.badDescriptor
        default: throw DescriptorWaitFailed(code: code)
        }
      }
      try WaitQueue.park(carrier, job, direction.waitKind, for: UInt(bitPattern: Int(descriptor.number))) { epoch in
        table.begin(waiter, epoch)
      } withdraw: {
        table.leave(waiter, descriptor, direction)
      }
      return .checkAgain
    }
  }

  /// Takes the kernel's events, and wakes the waiters that they concern.
  ///
  /// Called on the source's queue only.
  private static func collect(_ epoll: Int32, _ tables: [DescriptorTable]) {
    let most = 128
    withUnsafeTemporaryAllocation(of: clinux_poll_event.self, capacity: most) { events in
      var count = 0
      repeat {
        count = Int(clinux_poller_collect(epoll, events.baseAddress.unsafelyUnwrapped, Int32(most)))
        for index in 0..<max(0, count) {
          let descriptor = Descriptor(events[index].descriptor)
          table(descriptor, tables).happened(events[index].events, descriptor)
        }
      } while count == most
    }
  }
}
