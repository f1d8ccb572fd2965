internal import CLinux
import Dispatch
import Synchronization

#if canImport(Glibc)
import Glibc
#else
import Musl
#endif

// How the kernel wakes coroutines: one epoll instance for the process, watched by one Dispatch source.
//
// A descriptor, as the epoll instance knows it (the kernel's side; we keep no copy of it):
//
//             ADD                    an event is collected (EPOLLONESHOT)
//   ABSENT ---------> ARMED(mask) -------------------------------------> DISARMED
//     ^                 |   ^ |                                             |
//     |                 |   +-+ MOD: another waiter joins                   | MOD: somebody waits again
//     |                 |   +-----------------------------------------------+
//     +-----------------+---- the file is closed, from any state
//
// Its entry in a table (our side, DescriptorTable.swift) exists exactly while somebody waits for it:
//
//   NONE --a first waiter--> WAITED FOR --the last one is woken, or leaves--> NONE
//
// Invariants
//  1. Waiters are linked, the mask is computed and epoll_ctl is called in one critical section of the entry's table. So after
//     each such section in which somebody waits, the kernel has been told at least what all who wait want, since the last of
//     them joined.
//  2. Each wait calls epoll_ctl, always: MOD, and ADD where the kernel does not know the pair of number and file. What we
//     believe about a number is never relied upon, so a number that was closed and used again cannot be taken for the old
//     file.
//  3. Events are hints. Whoever is woken looks again with poll (Descriptor.swift) and waits again if it was for nothing.
//
// Why no wake-up is lost. Let W link itself and arm. The kernel looks at the file within epoll_ctl, so readiness from before
// counts, and what comes later fires: the armed descriptor yields an event. Only `collect` takes events, on one serial
// queue. It may have taken one before W armed: then W's arming is newer than the kernel's disarming, and stands. Or after: then W
// is in the table when `collect` gets its lock, because W armed under it, and is woken. Waking some disarms all (one shot),
// so `collect` arms again, in the same critical section, for those who wait for the other direction. Who joins after that
// arms for everybody anew.
//
// Stale things are harmless: an armed descriptor whose waiters have all left gives one event, for which there is no entry, and
// is disarmed by it; an event of an old file wakes those who wait under its number now, who look and wait again. That is why
// leaving costs no system call. A waiter of a closed descriptor stays in its entry until it is cancelled; its node is
// unlinked by itself, as any other's.
//
// No wait is left behind: that source fires while the epoll instance holds events (level), so a batch that was not
// taken to the end is taken on the next firing.

final class DescriptorPoller: @unchecked Sendable {
  // Sound because nothing of it changes after its making; the source is thread-safe, and is cancelled by the deinit only.

  /// What `wait` ended with, where it did not throw.
  enum Answer {
    case lookAgain
    case alwaysReady
  }

  private static let lock = SpinLock()
  // Sound because it is read and written under `lock`.
  nonisolated(unsafe) private static var made: DescriptorPoller?

  /// The process's.
  ///
  /// Made at the first wait; where that fails for want of a descriptor, made at a later one.
  static func shared() throws -> DescriptorPoller {
    if let made = lock.withLock({ made }) { return made }
    let mine = try DescriptorPoller()
    // Two may have come at once: the one that is not kept closes what it opened.
    return lock.withLock {
      if let made { return made }
      made = mine
      return mine
    }
  }

  private let epoll: Int32
  private let source: any DispatchSourceRead
  /// By the low bits of the number: waiting costs a system call under the table's lock, which others should not wait for.
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

  /// How many descriptors are waited for now.
  var count: Int { tables.reduce(0) { $0 + $1.count } }

  private static func table(_ descriptor: Descriptor, _ tables: [DescriptorTable]) -> DescriptorTable {
    tables[Int(descriptor.number) & (tableCount - 1)]
  }

  /// Suspends the running coroutine until it should look at the descriptor again.
  func wait(for descriptor: Descriptor, _ direction: Descriptor.Direction) throws -> Answer {
    // Read anew at each wait: the job may have come back on another thread, and been cancelled since it was woken.
    let (carrier, job) = try Carrier.beginWaiting()
    // A simulation must not take this wait for a deadlock.
    let host = job.pointee.scheduler.load(ordering: .relaxed)._withUnsafeGuaranteedRef { $0.host }
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
      host.beginOutsideWork()
      defer { host.endOutsideWork() }
      try WaitQueue.park(carrier, job, direction.waitKind, for: UInt(bitPattern: Int(descriptor.number))) { epoch in
        table.begin(waiter, epoch)
      } withdraw: {
        table.leave(waiter, descriptor, direction)
      }
      return .lookAgain
    }
  }

  /// Takes the kernel's events and wakes those whom they concern.
  ///
  /// On the source's queue only.
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
