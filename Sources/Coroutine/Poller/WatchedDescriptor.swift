internal import CCoroutine
import Glibc
import Synchronization

/// A non-blocking descriptor that the runtime owns: it is used, waited for, and closed through this object alone.
///
/// The word `life` counts the threads that use the number at this moment. So the number is never used after the close,
/// when it may name another file:
///
///   life = users << 3 | WRITING | READING | CLOSED
///
///   OPEN, n users  --enter / leave-->  OPEN, n ± 1
///        | close (once: the caller that sets CLOSED; it counts as a user until it has woken the waiters)
///        v
///   CLOSED, n users --leave--> CLOSED, 0 users: the number is closed, once, by the thread whose leave this was
///
/// Invariants
///  1. A system call with the number is made by a user only: between `enter` and `leave`.
///  2. After CLOSED, no thread enters. So CLOSED with 0 users is reached once, and the thread that reaches it closes.
///  3. READING and WRITING are claims of one coroutine each, for a whole operation. A coroutine that waits keeps its
///     claim, and is not a user. So closing does not wait for waiting coroutines.
///  4. The record in `use` belongs to this object from its creation to its deinit. No coroutine waits in the record at
///     the deinit, because a waiting coroutine holds the object.
///
/// Close against wait. `close` sets CLOSED in `life`, then in both directions under their locks, where it wakes the
/// waiters. A coroutine that is about to wait either links its waiter first and is woken, or finds CLOSED under the
/// lock and does not wait. A woken coroutine finds CLOSED when it enters.
///
/// Close against a running system call. The caller has entered, so the number stays open until it leaves. The call does
/// not block, because the descriptor is non-blocking. Its result is valid.
package final class WatchedDescriptor: @unchecked Sendable {
  // Sound because the mutable state is atomic, or in the record, whose parts name their guards.

  /// A direction; the raw value is the bit of its claim.
  package enum Direction: UInt, Sendable {
    case reading = 2
    case writing = 4

    var waitKind: WaitKind { self == .reading ? .readable : .writable }
  }

  /// The result of an attempt to enter or to claim.
  package enum ClaimResult: Sendable { case done, closed, busy }

  private static var closed: UInt { 1 }
  private static var oneUser: UInt { 8 }

  /// The descriptor's number.
  ///
  /// Only users may pass it to system calls.
  package let number: Int32
  /// Whether a read that returned fewer bytes than requested has emptied the stream, and later bytes have an event.
  ///
  /// True of TCP.
  let shortReadMeansEmpty: Bool
  /// Whether the descriptor was added to the poller, so that every change of its readiness has an event.
  ///
  /// Beside the other small fields: at the end, it would cost each descriptor 16 bytes.
  let isWatched = Atomic<Bool>(false)
  /// The world's end of a simulated descriptor; nil for a real one, whose system calls cost one more load.
  package let simulated: (any SimulatedEnd)?
  let use: WatchTable.Use
  private let life = Atomic<UInt>(0)
  /// The poller, as an unmanaged reference; set once, before the descriptor is added to it; 0 before.
  ///
  /// A poller with descriptors lives as long as the process.
  let poller = Atomic<UInt>(0)

  /// Creates the owner of an open, non-blocking descriptor.
  ///
  /// If it throws, the descriptor has been closed, unless it is `kept` for the one who has opened it.
  package init(
    _ number: Int32,
    shortReadMeansEmpty: Bool,
    simulated: (any SimulatedEnd)? = nil,
    kept: Bool = false
  ) throws(Failure) {
    guard let use = WatchTable.take() else {
      if !kept { Glibc.close(number) }
      throw .system(ENOMEM)
    }
    self.number = number
    self.use = use
    self.shortReadMeansEmpty = shortReadMeansEmpty
    self.simulated = simulated
  }

  deinit {
    // Orders the deinit after the last use on another thread, also for ThreadSanitizer.
    if life.load(ordering: .acquiring) & Self.closed == 0 {
      endRecord()
      closeNumber()
    }
    // In a forked child the lock's holder may have stayed in the parent.
    if cco_forked() == CCO_NOT_FORKED { WatchTable.give(use) }
  }

  func direction(_ direction: Direction) -> ReadinessRef { direction == .reading ? use.record : use.record + 1 }

  // MARK: Use

  /// Becomes a user of the number; returns false if it is closed.
  ///
  /// Any thread.
  package func enter() -> Bool { change { $0 &+ Self.oneUser } == .done }

  /// Claims a direction for one operation of one coroutine.
  ///
  /// Any thread.
  package func claim(_ direction: Direction) -> ClaimResult {
    change { $0 & direction.rawValue == 0 ? $0 | direction.rawValue : nil }
  }

  @inline(__always)
  private func change(_ next: (UInt) -> UInt?) -> ClaimResult {
    var old = life.load(ordering: .relaxed)
    while true {
      if old & Self.closed != 0 { return .closed }
      guard let new = next(old) else { return .busy }
      let (isDone, seen) = life.compareExchange(
        expected: old,
        desired: new,
        successOrdering: .acquiringAndReleasing,
        failureOrdering: .relaxed
      )
      if isDone { return .done }
      old = seen
    }
  }

  /// Ends a use; the last one after a close closes the number.
  package func leave() {
    let new = life.wrappingSubtract(Self.oneUser, ordering: .acquiringAndReleasing).newValue
    if new & Self.closed != 0, new < Self.oneUser { closeNumber() }
  }

  /// Releases a claim, also after a close.
  package func releaseClaim(_ direction: Direction) { life.bitwiseAnd(~direction.rawValue, ordering: .releasing) }

  // MARK: Close

  package var isClosed: Bool { life.load(ordering: .acquiring) & Self.closed != 0 }

  /// Closes the descriptor: wakes every waiter, and lets no operation begin; returns false if it was closed before.
  ///
  /// Never suspends; any thread. `last` is called while the number is still open.
  @discardableResult
  package func close(last: (Int32) -> Void = { _ in }) -> Bool {
    guard change({ ($0 | Self.closed) &+ Self.oneUser }) == .done else { return false }
    last(number)
    endRecord()
    leave()
    return true
  }

  /// Wakes the waiters, and lets no further wait begin.
  private func endRecord() {
    // No coroutine waits in a forked child, and the holder of the lock may have stayed in the parent. If the child may
    // still begin to use the runtime, no coroutine has ever waited here (WatchTable.give).
    if cco_forked() != CCO_NOT_FORKED { return }
    use.record.close()
    (use.record + 1).close()
  }

  private func closeNumber() {
    // A forked child shares the epoll instance with its parent. The child closes only its copy of the descriptor.
    if isWatched.load(ordering: .acquiring), cco_forked() == CCO_NOT_FORKED { currentPoller?.unwatch(number) }
    Glibc.close(number)
    simulated?.closed()
  }

  private var currentPoller: Poller? {
    guard let address = UnsafeRawPointer(bitPattern: poller.load(ordering: .acquiring)) else { return nil }
    return Unmanaged<Poller>.fromOpaque(address).takeUnretainedValue()
  }
}

/// The error of a descriptor that cannot be watched, or of a poller that cannot be created.
package struct DescriptorRefusal: Error {
  package let code: Int32
}
