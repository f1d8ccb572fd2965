internal import CCoroutineRuntime
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
    guard let use = WatchTable.take(for: simulated == nil ? .init(number) : nil) else {
      if !kept { Glibc.close(number) }
      throw .system(ENOMEM)
    }
    self.number = number
    self.use = use
    self.shortReadMeansEmpty = shortReadMeansEmpty
    self.simulated = simulated
  }

  /// Starts the poller of schedulers that have none of their own, which takes two descriptors.
  ///
  /// Otherwise the first wait does so. Later calls have no effect. Never suspends; any thread.
  package static func startPolling() throws(DescriptorRefusal) { _ = try Poller.shared() }

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

// MARK: - The loop that tries and waits

// The one loop by which a coroutine uses a descriptor: make the system call, and wait if it would block.
//
//   enter, read the word w of the direction
//     READY: the system call. A result or an error ends the loop.
//            EAGAIN: `clear(w)`, again
//     IDLE or WAITING: leave; add the descriptor to a poller, if that was not done; wait; enter again
//
// The call is made before the descriptor is added to a poller. So a connection that lives for one request, which has
// arrived already, is never added. Adding reports the readiness that the descriptor has, so no event is lost
// (Readiness.swift).

extension WatchedDescriptor {
  /// The result of a try.
  package struct Attempt: Sendable {
    /// What the system call returned, or the negative error number.
    package let result: Int64
    /// Whether the call succeeded with fewer bytes than it had room for.
    package let isShort: Bool

    package init(_ result: Int64, isShort: Bool = false) {
      self.result = result
      self.isShort = isShort
    }
  }

  /// Why an attempt ended without a result.
  package enum Failure: Error {
    /// The descriptor was closed, before the call or while it waited.
    case closed
    /// The error number of the system call.
    case system(Int32)
  }

  /// Makes a system call as soon as the direction is ready, and returns its result.
  ///
  /// Suspends while it is not ready; an event or a close resumes it. `call` gets the number, must not suspend, and is
  /// repeated after EAGAIN and EINTR. `beforeWaiting` is called before each wait.
  ///
  /// Throws a `Failure`; a `DescriptorRefusal`; `notInCoroutine` outside a coroutine; and the cancellation error. After
  /// the cancellation error, no call has succeeded.
  package func perform(
    _ direction: Direction,
    beforeWaiting: () -> Void = {},
    _ call: (Int32) -> Attempt
  ) throws -> Int64 {
    while true {
      _ = try Carrier.beginWaiting()
      if let result = try attempt(direction, call) {
        if result >= Carrier.bytesOfWait, simulated == nil { Carrier.countBytes(result) }
        return result
      }
      beforeWaiting()
      try wait(direction)
    }
  }

  /// Begins an operation that calls `attempt` and `wait` by itself, as `perform` begins: others get their turn if the
  /// coroutine has run for long.
  ///
  /// May suspend. Throws `notInCoroutine` outside a coroutine.
  package func beginOperation() throws { _ = try Carrier.beginWaiting() }

  /// Makes a system call if the direction is ready; returns nil if it is not, and a wait may begin.
  ///
  /// Never suspends; any thread.
  package func attempt(_ direction: Direction, _ call: (Int32) -> Attempt) throws -> Int64? {
    let readiness = self.direction(direction)
    while true {
      guard enter() else { throw Failure.closed }
      let seen = readiness.word
      guard seen.state == .ready else {
        leave()
        if seen.state == .closed { throw Failure.closed }
        return nil
      }
      if let simulated, simulated.failure != 0 {
        leave()
        throw Failure.system(simulated.failure)
      }
      let attempt = call(number)
      leave()
      simulated?.used(direction)
      switch attempt.result {
      case 0...:
        // Why nothing is left then: Readiness.swift, "A short read".
        if attempt.isShort, shortReadMeansEmpty { readiness.clear(seen, afterShortRead: true) }
        return attempt.result
      case -Int64(EAGAIN): readiness.clear(seen)
      case -Int64(EINTR): continue
      default: throw Failure.system(Int32(truncatingIfNeeded: -attempt.result))
      }
    }
  }

  /// Whether a system call in the direction may succeed, as far as the runtime knows.
  package func mayBeReady(_ direction: Direction) -> Bool { self.direction(direction).word.state == .ready }

  /// Suspends the running coroutine until a system call may succeed, or the descriptor is closed.
  ///
  /// Throws the cancellation error, and a `DescriptorRefusal`.
  package func wait(_ direction: Direction) throws {
    // Read again at each wait: since its wake-up, the job may have moved to another thread, or been cancelled.
    let (carrier, job) = try Carrier.beginWaiting()
    if simulated == nil {
      // A simulated world waits for real descriptors only where that is declared.
      try Host.requireReal { "a \(direction) descriptor, \(number)" }
      try watch()
    }
    let readiness = self.direction(direction)
    readiness.pointee.lock.lock()
    guard readiness.beginWaiting() else { return readiness.pointee.lock.unlock() }
    var waiter = Waiter(job: job)
    try withUnsafeMutablePointer(to: &waiter) { waiter in
      _ = try WaitQueue.park(carrier, job, direction.waitKind, for: UInt(bitPattern: Int(number))) { epoch in
        readiness.pointee.waiters.append(waiter, epoch)
        readiness.pointee.lock.unlock()
      } withdraw: {
        readiness.withdraw(waiter)
      }
    }
  }

  /// Adds the descriptor to a poller, unless that was done; returns whether this call has told the kernel.
  ///
  /// If so, the readiness that the descriptor has already will be reported.
  @discardableResult
  func watch() throws -> Bool {
    if isWatched.load(ordering: .acquiring) { return false }
    // A user, because no close may come between the check of `life` and the system call.
    guard enter() else { return false }
    defer { leave() }
    // Two coroutines, one for each direction, may do this at once: both use the poller that was stored first, and the
    // second addition does nothing.
    let mine = Unmanaged.passUnretained(try Poller.forFirstWait()).toOpaque()
    let (isMine, stored) = poller.compareExchange(
      expected: 0,
      desired: UInt(bitPattern: mine),
      ordering: .acquiringAndReleasing
    )
    let chosen = isMine ? UnsafeRawPointer(mine) : UnsafeRawPointer(bitPattern: stored).unsafelyUnwrapped
    try Unmanaged<Poller>.fromOpaque(chosen)._withUnsafeGuaranteedRef {
      try $0.watch(number, use)
      if !isWatched.exchange(true, ordering: .acquiringAndReleasing) { $0.watched.wrappingAdd(1, ordering: .relaxed) }
    }
    return true
  }
}

// MARK: - Descriptors of a simulated world

/// The world's end of a simulated connection: the other socket of the pair, and the times at which its bytes arrive.
///
/// The program's descriptor is a real socket, one of a pair, so every system call that works with bytes works with it.
/// No poller watches it: its events come from `WatchedDescriptor.arrived`. Used on the thread of its world, except for
/// `closed`.
package protocol SimulatedEnd: AnyObject, Sendable {
  /// The error number with which every further call fails; 0 if there is none.
  var failure: Int32 { get }
  /// Called after each system call in the direction.
  func used(_ direction: WatchedDescriptor.Direction)
  /// Called once, when the descriptor has been closed, on any thread; at the latest in the deinit of its owner.
  func closed()
}

extension WatchedDescriptor {
  /// Records that the direction may be ready, and wakes the waiters.
  package func arrived(_ direction: Direction) { self.direction(direction).happened(use.generation, sticks: true) }
}
