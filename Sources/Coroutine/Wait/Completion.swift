public import CCoroutineRuntime
public import Synchronization

// An outcome that is settled once and awaited by any number of waiters: the common part of jobs and promises.
//
//   PENDING --- settle (the first one wins, under the lock) ---> SUCCEEDED or FAILED for ever
//
// Invariants
//  1. The outcome is written once, under the lock, before `state` leaves PENDING (release). A thread that has read
//     another state (acquire) may read the outcome without the lock.
//  2. A job's waiter is linked only while PENDING, a promise's until all promises have been notified, a callback's
//     until it is called. Settling unlinks the first two kinds and claims the jobs' waits under the lock (Waiter.swift,
//     4); it wakes and notifies after it has left the lock. Then it unlinks and calls the callbacks one by one. They
//     are foreign code, and run after all other waiters were notified.
//  3. Every linked waiter is woken, notified or called exactly once, or has unlinked itself before.
//  4. Callbacks are called one at a time: a callback that is added while another one runs is linked, and called after
//     it.
//  5. If the settling thread may hold locks (JobRecord.swift), callbacks that are foreign code stay linked, and another
//     thread calls them, in their order.
//
// Why the value is stored as raw bytes in a struct that is not generic: methods of generic classes are not specialised
// when they are called through the class (a job's end, a deinit). There each use of `Result<Success, any Error>?` looks
// up its metadata in a table, which takes 40 ns. Bytes need no metadata; the inlinable accessors know the type.

@usableFromInline
struct Completion: ~Copyable {
  @usableFromInline static var pending: UInt8 { 0 }
  @usableFromInline static var succeeded: UInt8 { 1 }
  @usableFromInline static var failed: UInt8 { 2 }

  /// Keeps handlers that are bound to no queue in order.
  ///
  /// Accessed under the lock. The first field: ThreadSanitizer records an inout access to any field at the address of
  /// the struct, and all of those are made under the lock.
  @usableFromInline var ordered: OrderedHandlers?
  /// The second field, see `waiterAddress`.
  @usableFromInline var waiters = WaitQueue()
  /// The value, or a pointer to it if it does not fit; of a job that has not begun, its body (Job.swift).
  ///
  /// The third field, see `bytesAddress`.
  @usableFromInline var bytes = InlineArray<3, UInt>(repeating: 0)
  @usableFromInline let words = Shared(CompletionWords())
  /// Whether the outcome has been or will be observed: an unobserved failure is reported.
  @usableFromInline let isObserved = Atomic<Bool>(false)
  /// Settled, and all linked waiters have been woken or notified; only callbacks may still be linked.
  ///
  /// Accessed under the lock.
  @usableFromInline var isReleased = false
  /// A callback has been unlinked and has not returned; a callback that is added now must not overtake it.
  ///
  /// Accessed under the lock.
  @usableFromInline var isCalling = false
  static var noWorker: UInt8 { .max }
  /// The number of the worker that runs the handlers attached by coroutines on workers (HandlerQueue.swift).
  ///
  /// Accessed under the lock.
  @usableFromInline var handlerWorker: UInt8 = .max
  /// Whether a value needs no `work` to be destroyed.
  @usableFromInline let isTrivial: Bool
  /// A lock for the owner of the completion, in a byte that would be padding: `AnyJob.withMove`.
  @usableFromInline let ownersLock = SpinLock()
  @usableFromInline var failure: (any Error)?
  /// What only code can do that knows the type of the value.
  ///
  /// One function, because a function takes 16 bytes. Captures nothing if it is made by specialised code. Not optional:
  /// an optional function takes its parameters in memory, and each job would allocate a function that does.
  @usableFromInline let work: Work

  /// With an address, destroys the value whose bytes are there; without one, runs the body of `job` and settles it.
  @usableFromInline typealias Work = (_ value: UnsafeMutableRawPointer?, _ job: AnyJob?) -> Void

  @inlinable @inline(__always)
  static func fits<Success>(_ type: Success.Type) -> Bool {
    MemoryLayout<Success>.size <= MemoryLayout<InlineArray<3, UInt>>.size
      && MemoryLayout<Success>.alignment <= MemoryLayout<UInt>.alignment
  }

  /// Allocates the memory of a value that does not fit, or returns nil.
  ///
  /// Called before the lock is taken.
  @inlinable @inline(__always)
  static func box<Success>(for type: Success.Type) -> UnsafeMutablePointer<Success>? {
    fits(type) ? nil : .allocate(capacity: 1)
  }

  @inlinable @inline(__always)
  init<Success>(for type: Success.Type) {
    isTrivial = Self.fits(type) && _isPOD(type)
    // Two functions: unspecialised code allocates memory for one that names `Success`.
    work = isTrivial ? { _, _ in } : { value, _ in Self.destroy(value.unsafelyUnwrapped, as: Success.self) }
  }

  /// Creates the completion of a job; the job stores its body.
  @inlinable @inline(__always)
  init<Success>(for type: Success.Type, work: @escaping Work) {
    isTrivial = Self.fits(type) && _isPOD(type)
    self.work = work
  }

  /// Destroys the value whose bytes are at an address.
  @inlinable
  static func destroy<Success>(_ value: UnsafeMutableRawPointer, as type: Success.Type) {
    if fits(type) {
      value.assumingMemoryBound(to: Success.self).deinitialize(count: 1)
    } else {
      let pointer = value.load(as: UnsafeMutablePointer<Success>.self)
      pointer.deinitialize(count: 1)
      pointer.deallocate()
    }
  }

  @inlinable deinit {
    guard !isTrivial, words.known.state.load(ordering: .acquiring) == Self.succeeded else { return }
    var copy = bytes
    withUnsafeMutableBytes(of: &copy) { work($0.baseAddress.unsafelyUnwrapped, nil) }
  }
}

/// The words of a completion: what settles it is seen at both.
@usableFromInline
struct CompletionWords: ~Copyable, Sendable {
  @usableFromInline let state = Atomic<UInt8>(Completion.pending)
  @usableFromInline let lock = SpinLock()

  @inlinable init() {}

  @inlinable var isSettled: Bool { state.load(ordering: .acquiring) != Completion.pending }
}

/// A completion is accessed through its address only.
///
/// Its methods access one field at a time: a `mutating` method would claim the whole completion for its duration, as
/// long as a suspension, while other threads settle it.
@usableFromInline typealias CompletionRef = UnsafeMutablePointer<Completion>

extension UnsafeMutablePointer where Pointee == Completion {
  /// The words, for a use that a world need not be told of (Shared.swift).
  @inlinable var known: CompletionWords {
    @inline(__always) _read { yield pointee.words.known }
  }

  /// The address by which a world knows the completion.
  @inlinable var id: UInt { @inline(__always) get { pointee.words.id } }

  /// The words, after a world has been told of the use.
  @inlinable var touched: CompletionWords {
    @inline(__always) _read { yield pointee.words.touched }
  }

  @inlinable var isSettled: Bool { touched.isSettled }

  @inlinable @inline(__always)
  func lock() {
    pointee.words.touch()
    known.lock.lock()
  }

  @inlinable @inline(__always)
  func unlock() { known.lock.unlock() }

  @inlinable @inline(__always)
  func withLock<Output: ~Copyable>(_ body: () -> Output) -> Output {
    pointee.words.touch()
    return known.lock.withLock(body)
  }

  /// The address of the waiter queue, without an access to it.
  ///
  /// A select needs the address before it has the lock. Forming it from `&waiters` would be a write to the whole
  /// completion, which ThreadSanitizer reports against every other waiter.
  // Sound because `waiters` is the second field; the owners of completions check that once, in their `init`.
  @inlinable var waiterAddress: UnsafeMutablePointer<WaitQueue> {
    @inline(__always) get {
      UnsafeMutableRawPointer(self).advanced(by: MemoryLayout<UInt>.size).assumingMemoryBound(to: WaitQueue.self)
    }
  }

  /// The address of the bytes, for the body of a job, without an access to the completion for the same reason.
  // Sound because `bytes` is the third field; AnyJob checks that.
  @inlinable var bytesAddress: UnsafeMutablePointer<InlineArray<3, UInt>> {
    @inline(__always) get {
      UnsafeMutableRawPointer(waiterAddress + 1).assumingMemoryBound(to: InlineArray<3, UInt>.self)
    }
  }

  // MARK: Settling

  /// Tells a world of the use that follows (Shared.swift), which is not a step of the completion's own job.
  @inlinable @inline(__always)
  func touch() { pointee.words.touch() }

  /// Settles with a value; returns false, and changes nothing, if it was settled before.
  ///
  /// Wakes and calls all waiters. Any thread, after `touch` unless a world knows the use; linear in their number.
  @inlinable
  func succeed<Success>(_ value: consuming Success) -> Bool {
    let box = Completion.box(for: Success.self)
    known.lock.lock()
    guard known.state.load(ordering: .relaxed) == Completion.pending else {
      unlock()
      box?.deallocate()
      return false
    }
    store(value, box)
    publish(Completion.succeeded)
    return true
  }

  /// Settles with a failure, as `succeed` does with a value.
  @usableFromInline
  func fail(_ error: any Error) -> Bool {
    known.lock.lock()
    guard known.state.load(ordering: .relaxed) == Completion.pending else {
      unlock()
      return false
    }
    pointee.failure = error
    publish(Completion.failed)
    return true
  }

  /// Stores the value, under the lock.
  ///
  /// `box` is memory from `Completion.box(for:)`, which the completion takes over.
  @inlinable @inline(__always)
  func store<Success>(_ value: consuming Success, _ box: UnsafeMutablePointer<Success>?) {
    var value = value
    if Completion.fits(Success.self) {
      withUnsafeMutableBytes(of: &pointee.bytes) { bytes in
        withUnsafeMutablePointer(to: &value) { source in
          let target = bytes.baseAddress.unsafelyUnwrapped.assumingMemoryBound(to: Success.self)
          target.initialize(to: source.pointee)
        }
      }
    } else {
      box.unsafelyUnwrapped.initialize(to: value)
      pointee.bytes[0] = UInt(bitPattern: box)
    }
  }

  /// Publishes the stored outcome, and leaves the lock.
  @inlinable @inline(__always)
  func publish(_ outcome: UInt8) {
    cco_order_retains()
    known.state.store(outcome, ordering: .releasing)
    if pointee.waiters.first == nil {
      pointee.isReleased = true
      unlock()
    } else {
      releaseWaiters()
    }
  }

  /// Wakes, notifies and calls all waiters.
  ///
  /// Called under the lock, which it leaves.
  @usableFromInline
  func releaseWaiters() {
    if tellWaiters() { callBack() }
  }

  /// Wakes the waiting jobs and notifies the waiting promises, in the order of linking; returns whether callbacks
  /// remain to be called.
  ///
  /// A promise that is added meanwhile is linked behind the others and notified here too. If the adding thread notified
  /// it, it would overtake them. Called under the lock, which it leaves.
  func tellWaiters() -> Bool {
    while pointee.waiters.first != nil {
      var woken = JobQueue()
      var callbacks = WaitQueue()
      var told: UnsafeMutablePointer<Waiter>?
      var lastTold: UnsafeMutablePointer<Waiter>?
      var isSeen = false
      while let waiter = pointee.waiters.popFirst() {
        if let job = waiter.pointee.job {
          if job.claim(waiter.pointee.epoch, waiter.pointee.reason) { woken.append(job) }
          continue
        }
        guard waiter.pointee.notify != nil else {
          callbacks.append(waiter)
          continue
        }
        // A promise that has no reference any more is in its deinit, and waits for the lock to unlink the waiter.
        if waiter.pointee.isUnowned {
          guard cco_try_retain(waiter.pointee.context.unsafelyUnwrapped) else { continue }
        } else {
          // Not for a passive promise: its last dependent may leave it before it is notified, and then no code observes
          // the failure.
          isSeen = true
        }
        // The unlinked waiter belongs to this thread: a chain by `next` is enough.
        waiter.pointee.next = nil
        if let lastTold { lastTold.pointee.next = waiter } else { told = waiter }
        lastTold = waiter
      }
      pointee.waiters = callbacks
      let hasCallbacks = callbacks.first != nil
      // If no promise is about to be notified, a later one cannot overtake it.
      let isDone = told == nil
      if isDone { pointee.isReleased = true }
      if isSeen { pointee.isObserved.store(true, ordering: .relaxed) }
      unlock()
      while let job = woken.popFirst() { Carrier.makeReady(job) }
      if isDone { return hasCallbacks }
      while let waiter = told {
        told = waiter.pointee.next
        waiter.pointee.notify.unsafelyUnwrapped(waiter.pointee.context.unsafelyUnwrapped, Int(waiter.pointee.index))
      }
      known.lock.lock()
    }
    pointee.isReleased = true
    unlock()
    return false
  }

  /// Settles with a failure as `fail` does, for a caller that may hold locks: runs no code of users.
  ///
  /// Returns true if callbacks are left. Then the caller makes another thread call `callBack`.
  func failWithoutForeignCode(_ error: any Error) -> Bool {
    lock()
    guard known.state.load(ordering: .relaxed) == Completion.pending else {
      unlock()
      return false
    }
    pointee.failure = error
    cco_order_retains()
    known.state.store(Completion.failed, ordering: .releasing)
    return tellWaiters() && callBack(untilForeign: true)
  }

  /// Calls the callbacks in the order of linking; called after tellWaiters, once.
  ///
  /// A callback that is added meanwhile, by a callback or by another thread, is linked behind the others and called
  /// here too.
  ///
  /// `untilForeign`: calls only callbacks that run no code of users, in their order, and returns whether others are
  /// left. Callbacks that are added after that are linked behind them, until `callBack` is called again.
  @discardableResult
  func callBack(untilForeign: Bool = false) -> Bool {
    known.lock.lock()
    pointee.isCalling = true
    if untilForeign { pointee.waiters.moveForeignBack() }
    while let waiter = pointee.waiters.first,
      !untilForeign || !waiter.pointee.callback._withUnsafeGuaranteedRef({ $0.isForeign })
    {
      pointee.waiters.remove(waiter)
      let callback = waiter.pointee.callback
      callback._withUnsafeGuaranteedRef {
        if $0.observes == .yes { pointee.isObserved.store(true, ordering: .relaxed) }
      }
      unlock()
      callback._withUnsafeGuaranteedRef { $0.fire() }
      // Released before the lock is taken: it may be the last reference, for example to an actor with its mailbox.
      callback.release()
      known.lock.lock()
    }
    pointee.isCalling = false
    let isLeft = pointee.waiters.first != nil
    unlock()
    return isLeft
  }

  // MARK: Reading the outcome

  /// The value; the caller knows that there is one, and its type.
  @inlinable @inline(__always)
  func value<Success>(as type: Success.Type) -> Success {
    withUnsafeBytes(of: pointee.bytes) { bytes in
      let address = bytes.baseAddress.unsafelyUnwrapped
      return Completion.fits(type)
        ? address.assumingMemoryBound(to: Success.self).pointee
        : address.load(as: UnsafePointer<Success>.self).pointee
    }
  }

  /// The outcome, or nil while it is pending.
  @inlinable
  func outcome<Success>(as type: Success.Type) -> Result<Success, any Error>? {
    isSettled ? settledOutcome(as: type) : nil
  }

  /// The outcome; the caller knows that it is settled, so it changes no more.
  @inlinable
  func settledOutcome<Success>(as type: Success.Type) -> Result<Success, any Error> {
    known.state.load(ordering: .acquiring) == Completion.succeeded
      ? .success(value(as: type)) : .failure(pointee.failure.unsafelyUnwrapped)
  }

  /// The outcome, for a caller that observes it; the caller knows that it is settled.
  @inlinable
  func seenOutcome<Success>(as type: Success.Type) -> Result<Success, any Error> {
    pointee.isObserved.store(true, ordering: .relaxed)
    if known.state.load(ordering: .acquiring) == Completion.failed { Carrier.noteFailure() }
    return settledOutcome(as: type)
  }

  /// Returns the value or throws the failure; the caller knows that it is settled.
  @inlinable @inline(__always)
  func get<Success>(as type: Success.Type) throws -> Success {
    if known.state.load(ordering: .acquiring) == Completion.succeeded { return value(as: type) }
    Carrier.noteFailure()
    throw pointee.failure.unsafelyUnwrapped
  }

  // MARK: Waiting

  /// Suspends the running job until the completion is settled.
  ///
  /// Throws the cancellation error if the running job is cancelled, which does not affect the awaited work.
  @inlinable @inline(__always)
  func wait(_ kind: WaitKind) throws {
    let (carrier, job) = try Carrier.beginWaiting(for: id)
    if !known.isSettled { try park(kind, carrier, job) }
    // After the wait, because a cancelled waiter has observed nothing.
    if !pointee.isObserved.load(ordering: .relaxed) { pointee.isObserved.store(true, ordering: .relaxed) }
  }

  /// What dumps read of a wait for this completion: the address of the job that it belongs to, or its own.
  private func source(_ kind: WaitKind) -> UInt {
    UInt(bitPattern: kind == .job ? UnsafeMutableRawPointer(ownJob.handle.toOpaque()) : UnsafeMutableRawPointer(self))
  }

  /// Suspends the running job unless the completion is settled by now.
  @usableFromInline
  func park(_ kind: WaitKind, _ carrier: UnsafeMutablePointer<Carrier>, _ job: JobRef) throws {
    known.lock.lock()
    if known.state.load(ordering: .relaxed) != Completion.pending {
      unlock()
      return
    }
    var waiter = Waiter(job: job)
    try withUnsafeMutablePointer(to: &waiter) { waiter in
      _ = try WaitQueue.park(carrier, job, kind, for: source(kind)) { epoch in
        pointee.waiters.append(waiter, epoch)
        unlock()
      } withdraw: {
        known.lock.lock()
        pointee.waiters.remove(waiter)
        unlock()
      }
    }
  }
}

extension WaitQueue {
  /// Moves the callbacks that run code of users behind the others; all waiters are callbacks.
  fileprivate mutating func moveForeignBack() {
    var foreign = WaitQueue()
    var others = WaitQueue()
    while let waiter = popFirst() {
      if waiter.pointee.callback._withUnsafeGuaranteedRef({ $0.isForeign }) {
        foreign.append(waiter)
      } else {
        others.append(waiter)
      }
    }
    while let waiter = foreign.popFirst() { others.append(waiter) }
    self = others
  }
}

extension CompletionRef {
  @inlinable var lockAddress: UnsafePointer<SpinLock> {
    @inline(__always) get { withUnsafePointer(to: pointee.words.known.lock) { $0 } }
  }
}

// MARK: - Callbacks

// The callbacks of a completion: linked, unlinked, and made from closures. The head of the file has the invariants.

extension CompletionRef {
  /// Links a callback and retains it; returns false if the completion is settled, and the callback will not be called.
  ///
  /// After `touch`, unless a world knows the use.
  @usableFromInline
  func add(_ callback: WaitCallback, observes: WaitCallback.Observes = .yes) -> Bool {
    callback.observes = observes
    known.lock.lock()
    defer { unlock() }
    guard !pointee.isReleased || pointee.isCalling || pointee.waiters.first != nil else {
      if observes != .no { pointee.isObserved.store(true, ordering: .relaxed) }
      return false
    }
    _ = Unmanaged.passRetained(callback)
    pointee.waiters.append(callback.waiter)
    return true
  }

  /// Unlinks a callback; returns true if it was linked and will not be called.
  @usableFromInline
  func remove(_ callback: WaitCallback) -> Bool {
    lock()
    let wasLinked = callback.waiter.pointee.isLinked
    if wasLinked { pointee.waiters.remove(callback.waiter) }
    unlock()
    if wasLinked { Unmanaged.passUnretained(callback).release() }
    return wasLinked
  }

  enum Removal { case removed, isLast, hasFired }

  /// Unlinks a callback if another consumer of the outcome is linked: a job, a promise or an observing callback.
  func removeUnlessLast(_ callback: WaitCallback) -> Removal {
    lock()
    guard callback.waiter.pointee.isLinked else {
      unlock()
      return .hasFired
    }
    guard pointee.waiters.hasConsumer(otherThan: callback.waiter) else {
      unlock()
      return .isLast
    }
    pointee.waiters.remove(callback.waiter)
    unlock()
    Unmanaged.passUnretained(callback).release()
    return .removed
  }
}

extension WaitQueue {
  /// Whether a waiter other than `one` takes the outcome.
  fileprivate func hasConsumer(otherThan one: UnsafeMutablePointer<Waiter>) -> Bool {
    first { $0 != one && $0.pointee.callbackIfAny?.observes != .no } != nil
  }
}

/// A callback from a closure.
@usableFromInline
final class ClosureCallback: WaitCallback, @unchecked Sendable {
  // Sound because it is taken once, by the firing thread.
  @exclusivity(unchecked) private var body: (() -> Void)?
  private let runsUsersCode: Bool

  init(isForeign: Bool = false, _ body: @escaping () -> Void) {
    runsUsersCode = isForeign
    self.body = body
    super.init()
  }

  override var isForeign: Bool { runsUsersCode }

  @usableFromInline override func fire() { body.take()?() }
}

// MARK: - What an actor does before its job is dropped

extension CompletionRef {
  /// The linked callback with `preparesDrop`: that of an actor.
  var callbackThatPreparesDrop: WaitCallback? {
    withLock {
      pointee.waiters.first { $0.pointee.callbackIfAny?.preparesDrop ?? false }?.pointee.callbackIfAny
    }
  }
}
