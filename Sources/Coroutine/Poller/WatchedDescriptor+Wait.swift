import Glibc
import Synchronization

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
