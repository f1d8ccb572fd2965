internal import CLinux
import Glibc
import Synchronization

// The waits for descriptors that others own (Bridge/Descriptor.swift). Each arms its descriptor for one event.
//
// The state of a pair of number and file in an epoll instance (the kernel has it; this side keeps no copy):
//
//             ADD                    an event is taken (EPOLLONESHOT)
//   ABSENT ---------> ARMED(mask) -------------------------------------> DISARMED
//     ^                 |   ^ |                                             |
//     |                 |   +-+ MOD: another waiter joins                   | MOD: a new waiter joins
//     |                 |   +-----------------------------------------------+
//     +-----------------+---- the last copy of the file is closed, from any state
//
// The entry of a number exists exactly while a waiter waits for it:
//
//   NONE --the first waiter joins--> WAITED FOR, in one poller --the last waiter is woken or leaves--> NONE
//
// The first waiter chooses the poller as for a descriptor of the runtime (Poller.forFirstWait): that of its worker, or
// the one with a thread. A worker then wakes its own coroutine, so a wait costs three system calls: epoll_ctl, the
// worker's epoll_wait, and the poll that follows.
//
// Invariants
//  1. One critical section of the table links a waiter, computes the mask and calls epoll_ctl. So right after a join,
//     the entry's poller watches the number's present file for all waiters of the entry.
//  2. Each wait calls epoll_ctl: MOD, or ADD if the kernel does not know the pair of number and file. No assumption
//     about a number is kept, so a number that was closed and used again is never taken for the old file.
//  3. Events are hints. A woken coroutine checks again with poll, and waits again if it is not ready.
//  4. `owned` has the numbers that the runtime owns and watches. The kernel has one registration for a pair of number
//     and file in an epoll instance, and that one is the runtime's. So a wait for such a number is armed in a poller
//     that watches no descriptor of the runtime (Poller.separate). If a number becomes owned during a wait, its waiters
//     are woken, and join again there.
//
// Why no wake-up is lost. Let W link itself and arm. The kernel checks the file within epoll_ctl, so earlier readiness
// counts, and later readiness fires: the armed descriptor yields an event. If a thread took an event before W armed,
// W's arming is newer than the kernel's disarming, and stands. If it took one after that, W is in the table when the
// thread gets its lock, because W armed under it, and is woken. Waking some waiters disarms for all (one shot). So
// `happened` arms again, in the same critical section, for the waiters of the other direction. A waiter that joins
// later arms for all of them.
//
// Stale state is harmless. An armed descriptor whose waiters have all left yields one event, which finds no entry, or
// the waiters of a later entry, which check and wait again. That disarms it. An event of an old file does the same. So
// leaving needs no system call. A waiter of a closed descriptor stays in its entry until it is cancelled; it unlinks
// itself, as any other.

/// The waiters of each descriptor, for a share of all numbers.
///
/// Under the lock, a waiter for a number is linked in that number's entry. A claim is made under the lock, and the
/// waiting job takes the lock before its frame goes (Waiter.swift, 4).
final class DescriptorTable: @unchecked Sendable {
  // Sound because the entries and the owned numbers are under the lock.

  private struct Entry {
    /// Never released: a poller that has been returned to a wait lives as long as the process.
    let poller: Unmanaged<Poller>
    var readers = WaitQueue()
    var writers = WaitQueue()

    var isEmpty: Bool { readers.first == nil && writers.first == nil }

    /// The events that the waiters need.
    var mask: UInt32 {
      let wantsReadable = readers.first == nil ? 0 : CLINUX_POLL_READABLE.rawValue
      let wantsWritable = writers.first == nil ? 0 : CLINUX_POLL_WRITABLE.rawValue
      return wantsReadable | wantsWritable
    }

    subscript(direction: WatchedDescriptor.Direction) -> WaitQueue {
      get { direction == .reading ? readers : writers }
      set { if direction == .reading { readers = newValue } else { writers = newValue } }
    }

    /// Claims all waiters: readiness is not a value that one of them takes away, and a waiter that is cancelled after
    /// its wake-up must not take it away either.
    mutating func claimAll(into woken: inout JobQueue) {
      readers.claimAll(into: &woken)
      writers.claimAll(into: &woken)
    }
  }

  /// Chosen by the low bits of the number: a wait makes a system call under its table's lock, which should not delay
  /// others.
  private static let tables = (0..<tableCount).map { _ in DescriptorTable() }
  private static var tableCount: Int { 16 }

  /// The table that has a number.
  static func of(_ number: Int32) -> DescriptorTable { tables[Int(number) & (tableCount - 1)] }

  private let lock = ThreadLock()
  @exclusivity(unchecked) private var entries: [Int32: Entry] = [:]
  @exclusivity(unchecked) private var owned: Set<Int32> = []

  /// Whether a waiter waits for a number.
  func isWaitedFor(_ number: Int32) -> Bool { lock.withLock { entries[number] != nil } }

  // MARK: Waits

  /// Links a waiter and arms the descriptor.
  ///
  /// - Returns: 0, with the lock held until `begin`; or an error number, and then nothing has begun.
  func join(_ waiter: UnsafeMutablePointer<Waiter>, _ number: Int32, _ direction: WatchedDescriptor.Direction) throws
    -> Int32
  {
    // Outside of the lock, because it may create the poller.
    var poller = try Poller.forFirstWait()
    lock.lock()
    if owned.contains(number) {
      lock.unlock()
      poller = try Poller.separate()
      lock.lock()
    }
    var entry = entries[number] ?? Entry(poller: .passUnretained(poller))
    entry[direction].append(waiter)
    let code = arm(number, entry)
    var woken = JobQueue()
    if code != 0 {
      entry[direction].remove(waiter)
      // The other waiters of this number are woken too: each checks the descriptor, and finds the error itself.
      entry.claimAll(into: &woken)
    }
    store(entry, number)
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
  func leave(_ waiter: UnsafeMutablePointer<Waiter>, _ number: Int32, _ direction: WatchedDescriptor.Direction) {
    lock.lock()
    defer { lock.unlock() }
    // A linked waiter is in the number's current entry. A waiter that was woken and then cancelled is in no entry.
    guard waiter.pointee.isLinked, var entry = entries[number] else { return }
    entry[direction].remove(waiter)
    store(entry, number)
  }

  /// Claims the waiters that an event concerns, and arms again for the others; the caller makes the jobs ready that are
  /// then in `woken`.
  func happened(_ events: UInt32, _ number: Int32, _ woken: inout JobQueue) {
    let gone = CLINUX_POLL_HUNG_UP.rawValue | CLINUX_POLL_FAILED.rawValue
    lock.lock()
    defer { lock.unlock() }
    guard var entry = entries[number] else { return }
    if events & (CLINUX_POLL_READABLE.rawValue | gone) != 0 { entry.readers.claimAll(into: &woken) }
    if events & (CLINUX_POLL_WRITABLE.rawValue | gone) != 0 { entry.writers.claimAll(into: &woken) }
    // If that is refused, the descriptor was probably closed, and no further event will come.
    if !entry.isEmpty, arm(number, entry) != 0 { entry.claimAll(into: &woken) }
    store(entry, number)
  }

  /// Tells the kernel what to watch for, and returns 0 or an error number.
  private func arm(_ number: Int32, _ entry: Entry) -> Int32 {
    entry.poller._withUnsafeGuaranteedRef { $0.arm(number, entry.mask) }
  }

  /// Keeps a changed entry, or drops it with its last waiter.
  ///
  /// The poller's count of watched descriptors includes the entries: a busy worker polls for events only while it is
  /// not zero.
  private func store(_ entry: Entry, _ number: Int32) {
    let change = (entry.isEmpty ? 0 : 1) - (entries[number] == nil ? 0 : 1)
    entries[number] = entry.isEmpty ? nil : entry
    guard change != 0 else { return }
    entry.poller._withUnsafeGuaranteedRef { _ = $0.watched.wrappingAdd(change, ordering: .relaxed) }
  }

  // MARK: Descriptors of the runtime

  /// Adds a descriptor of the runtime to a poller, in place of what waits for it there.
  ///
  /// - Returns: 0 or an error number.
  func own(_ number: Int32, _ add: () -> Int32) -> Int32 {
    var woken = JobQueue()
    lock.lock()
    let isNew = owned.insert(number).inserted
    let code = add()
    if code == 0 {
      if var entry = entries[number] {
        entry.claimAll(into: &woken)
        store(entry, number)
      }
    } else if isNew {
      owned.remove(number)
    }
    lock.unlock()
    while let job = woken.popFirst() { Carrier.makeReady(job) }
    return code
  }

  /// Ends what `own` began.
  ///
  /// Called before the number is closed.
  func disown(_ number: Int32) { lock.withLock { _ = owned.remove(number) } }
}
