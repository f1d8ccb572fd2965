public import Synchronization

// What settles once and is waited for by any number: the common heart of jobs and promises.
//
//   PENDING --- settle (the first one wins, under the lock) ---> SUCCEEDED or FAILED for ever
//
// Invariants
//  1. The outcome is written once, under the lock, before `state` leaves PENDING (release); who has read another state
//     (acquire) may read the outcome without the lock.
//  2. A node is linked only while PENDING. Settling unlinks all, claims the jobs' waits and collects the callbacks, all
//     under the lock (Waiter.swift, 4); it wakes and calls after leaving it.
//  3. Everyone who was linked is woken or called exactly once, or has unlinked itself before.
//
// Why the value is kept as raw bytes in a struct that is not generic: the methods of generic classes are not specialised when
// they are called through the class (a job's end, a deinit), and there every use of `Result<Success, any Error>?` looks its
// metadata up in a table, 40 ns each. Bytes need no metadata; the inlinable accessors know the type.

@usableFromInline
struct Completion: ~Copyable {
  @usableFromInline static var pending: UInt8 { 0 }
  @usableFromInline static var succeeded: UInt8 { 1 }
  @usableFromInline static var failed: UInt8 { 2 }

  @usableFromInline let state = Atomic<UInt8>(0)
  @usableFromInline let lock = SpinLock()
  /// Whether anyone has seen, or will see, the outcome: a failure that nobody sees is reported.
  @usableFromInline let isObserved = Atomic<Bool>(false)
  @usableFromInline var waiters = WaitList()
  @usableFromInline var failure: (any Error)?
  /// The value, or a pointer to it where it does not fit.
  @usableFromInline var bytes = InlineArray<3, UInt>(repeating: 0)
  /// Destroys the value in `bytes`; nil: nothing to destroy.
  @usableFromInline let destroy: ((UnsafeMutableRawPointer) -> Void)?
  /// Keeps handlers that are bound to no queue in order. Under the lock.
  @usableFromInline var ordered: OrderedDelivery?

  @inlinable @inline(__always)
  static func fits<Success>(_ type: Success.Type) -> Bool {
    MemoryLayout<Success>.size <= MemoryLayout<InlineArray<3, UInt>>.size
      && MemoryLayout<Success>.alignment <= MemoryLayout<UInt>.alignment
  }

  @inlinable @inline(__always)
  init<Success>(for type: Success.Type) {
    if Self.fits(type) {
      destroy = _isPOD(type) ? nil : { $0.assumingMemoryBound(to: Success.self).deinitialize(count: 1) }
    } else {
      destroy = {
        let pointer = $0.load(as: UnsafeMutablePointer<Success>.self)
        pointer.deinitialize(count: 1)
        pointer.deallocate()
      }
    }
  }

  @inlinable deinit {
    guard state.load(ordering: .acquiring) == Self.succeeded, let destroy else { return }
    var copy = bytes
    withUnsafeMutableBytes(of: &copy) { destroy($0.baseAddress.unsafelyUnwrapped) }
  }

  @inlinable var isSettled: Bool { state.load(ordering: .acquiring) != Self.pending }

  // MARK: Settling

  /// False: settled before, nothing has changed. Wakes and calls everyone who waits. Any thread; linear in their number.
  @inlinable
  mutating func succeed<Success>(_ value: consuming Success) -> Bool {
    lock.lock()
    guard state.load(ordering: .relaxed) == Self.pending else {
      lock.unlock()
      return false
    }
    store(value)
    publish(Self.succeeded)
    return true
  }

  /// As succeed, with a failure.
  @usableFromInline
  mutating func fail(_ error: any Error) -> Bool {
    lock.lock()
    guard state.load(ordering: .relaxed) == Self.pending else {
      lock.unlock()
      return false
    }
    failure = error
    publish(Self.failed)
    return true
  }

  @inlinable
  mutating func settle<Success>(_ outcome: Result<Success, any Error>) -> Bool {
    switch outcome {
    case .success(let value): succeed(value)
    case .failure(let error): fail(error)
    }
  }

  @inlinable @inline(__always)
  mutating func store<Success>(_ value: consuming Success) {
    var value = value
    if Self.fits(Success.self) {
      withUnsafeMutableBytes(of: &bytes) { bytes in
        withUnsafeMutablePointer(to: &value) { source in
          let target = bytes.baseAddress.unsafelyUnwrapped.assumingMemoryBound(to: Success.self)
          target.initialize(to: source.pointee)
        }
      }
    } else {
      let pointer = UnsafeMutablePointer<Success>.allocate(capacity: 1)
      pointer.initialize(to: value)
      bytes[0] = UInt(bitPattern: pointer)
    }
  }

  /// Makes the stored outcome known; leaves the lock.
  @inlinable @inline(__always)
  mutating func publish(_ outcome: UInt8) {
    state.store(outcome, ordering: .releasing)
    if waiters.first == nil { lock.unlock() } else { releaseWaiters() }
  }

  @usableFromInline
  mutating func releaseWaiters() {
    var woken = RunQueue()
    var called = WaitList()
    while let node = waiters.popFirst() {
      if let job = node.pointee.job {
        if job.pointee.claim(node.pointee.token, node.pointee.reason) { woken.append(job) }
      } else {
        if node.pointee.callback.unsafelyUnwrapped._withUnsafeGuaranteedRef({ $0.observes }) {
          isObserved.store(true, ordering: .relaxed)
        }
        called.append(node)
      }
    }
    lock.unlock()
    while let job = woken.popFirst() { Turn.makeReady(job) }
    while let node = called.popFirst() { node.pointee.callback.unsafelyUnwrapped.takeRetainedValue().fire() }
  }

  // MARK: Looking

  /// The value; the caller knows that there is one, and of which type.
  @inlinable @inline(__always)
  func value<Success>(as type: Success.Type) -> Success {
    withUnsafeBytes(of: bytes) { bytes in
      let address = bytes.baseAddress.unsafelyUnwrapped
      return Self.fits(type)
        ? address.assumingMemoryBound(to: Success.self).pointee
        : address.load(as: UnsafePointer<Success>.self).pointee
    }
  }

  /// The outcome, once there is one.
  @inlinable
  func outcome<Success>(as type: Success.Type) -> Result<Success, any Error>? {
    switch state.load(ordering: .acquiring) {
    case Self.pending: nil
    case Self.succeeded: .success(value(as: type))
    default: .failure(failure.unsafelyUnwrapped)
    }
  }

  /// The value or a throw of the failure; the caller knows that it is settled.
  @inlinable @inline(__always)
  func get<Success>(as type: Success.Type) throws -> Success {
    if state.load(ordering: .acquiring) == Self.succeeded { return value(as: type) }
    throw failure.unsafelyUnwrapped
  }

  // MARK: Waiting

  /// Suspends the running job until settled. Throws what cancellation throws, and then leaves the work alone.
  @inlinable @inline(__always)
  mutating func wait(_ kind: WaitKind) throws {
    let (turn, job) = try Turn.requireJob()
    try job.pointee.checkCancelled()
    if !isSettled { try park(kind, turn, job) }
    // Only now: a waiter that gives up has seen nothing.
    if !isObserved.load(ordering: .relaxed) { isObserved.store(true, ordering: .relaxed) }
  }

  @usableFromInline
  mutating func park(_ kind: WaitKind, _ turn: UnsafeMutablePointer<Turn>, _ job: JobRef) throws {
    lock.lock()
    if state.load(ordering: .relaxed) != Self.pending {
      lock.unlock()
      return
    }
    var node = WaitNode(job: job, token: job.pointee.beginWait(kind))
    try withUnsafeMutablePointer(to: &node) { node in
      waiters.append(node)
      lock.unlock()
      if Turn.park(turn, job) == WakeReason.delivered { return }
      lock.lock()
      waiters.remove(node)
      lock.unlock()
      throw job.pointee.cancellation() ?? CancellationError()
    }
  }

  /// Links a callback; false: settled already, it was not linked and will not be called. Linked, it is retained. `observes`:
  /// whether the callback sees a failure.
  @usableFromInline
  mutating func add(_ callback: WaitCallback, observes: Bool = true) -> Bool {
    callback.observes = observes
    lock.lock()
    defer { lock.unlock() }
    guard state.load(ordering: .relaxed) == Self.pending else {
      if observes { isObserved.store(true, ordering: .relaxed) }
      return false
    }
    _ = Unmanaged.passRetained(callback)
    waiters.append(callback.node)
    return true
  }

  /// Unlinks a callback; true: it was linked and will not be called.
  @usableFromInline
  mutating func remove(_ callback: WaitCallback) -> Bool {
    lock.lock()
    let wasLinked = callback.node.pointee.isLinked && state.load(ordering: .relaxed) == Self.pending
    if wasLinked { waiters.remove(callback.node) }
    lock.unlock()
    if wasLinked { Unmanaged.passUnretained(callback).release() }
    return wasLinked
  }
}

/// A callback from a closure.
@usableFromInline
final class ClosureCallback: WaitCallback, @unchecked Sendable {
  // Sound because it is taken once, by the one who fires.
  @exclusivity(unchecked) private var body: (() -> Void)?

  @usableFromInline
  init(_ body: @escaping () -> Void) {
    self.body = body
    super.init()
  }

  @usableFromInline override func fire() { body.take()?() }
}
