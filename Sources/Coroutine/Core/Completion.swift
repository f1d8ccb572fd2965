public import Synchronization

// What settles once and is waited for by any number: the common heart of jobs and promises.
//
//   PENDING --- settle (the first one wins, under the lock) ---> SETTLED for ever
//
// Invariants
//  1. `result` is written once, under the lock, before `state` becomes SETTLED (release); who has read SETTLED (acquire) may
//     read it without the lock.
//  2. A node is linked only while PENDING. Settling unlinks all, claims the jobs' waits and collects the callbacks, all
//     under the lock (Waiter.swift, 4); it wakes and calls after leaving it.
//  3. Everyone who was linked is woken or called exactly once, or has unlinked itself before.

@usableFromInline
struct Completion<Success>: ~Copyable {
  @usableFromInline typealias Outcome = Result<Success, any Error>
  @usableFromInline let state = Atomic<UInt8>(0)
  @usableFromInline let lock = SpinLock()
  /// Whether anyone has seen, or will see, the result: a failure that nobody sees is reported.
  @usableFromInline let isObserved = Atomic<Bool>(false)
  @usableFromInline var result: Outcome?
  @usableFromInline var waiters = WaitList()
  /// Keeps handlers that are bound to no queue in order. Under the lock.
  @usableFromInline var ordered: OrderedDelivery?

  @inlinable init() {}

  @inlinable init(settled result: Outcome) {
    self.result = result
    state.store(1, ordering: .relaxed)
  }

  @inlinable var isSettled: Bool { state.load(ordering: .acquiring) != 0 }

  /// The result, once there is one. One load that is plain on x86-64.
  @inlinable var settled: Outcome? {
    @inline(__always) get { isSettled ? result : nil }
  }

  /// False: settled before, nothing has changed. Wakes and calls everyone who waits. Any thread; linear in their number.
  @inlinable
  mutating func settle(_ outcome: Outcome) -> Bool {
    lock.lock()
    guard result == nil else {
      lock.unlock()
      return false
    }
    result = outcome
    state.store(1, ordering: .releasing)
    var woken = RunQueue()
    var called = WaitList()
    while let node = waiters.popFirst() {
      if let job = node.pointee.job {
        if job.pointee.claim(node.pointee.token, node.pointee.reason) { woken.append(job) }
      } else {
        called.append(node)
      }
    }
    lock.unlock()
    while let job = woken.popFirst() { Turn.makeReady(job) }
    while let node = called.popFirst() { node.pointee.callback.unsafelyUnwrapped.takeRetainedValue().fire() }
    return true
  }

  /// Suspends the running job until settled. Throws what cancellation throws, and then leaves the work alone.
  @inlinable
  mutating func wait(_ kind: WaitKind) throws -> Outcome {
    let (turn, job) = try Turn.requireJob()
    try job.pointee.checkCancelled()
    if !isObserved.load(ordering: .relaxed) { isObserved.store(true, ordering: .relaxed) }
    if let settled { return settled }
    lock.lock()
    if result != nil {
      lock.unlock()
      return result.unsafelyUnwrapped
    }
    var node = WaitNode(job: job, token: job.pointee.beginWait(kind))
    return try withUnsafeMutablePointer(to: &node) { node in
      waiters.append(node)
      lock.unlock()
      if Turn.park(turn, job) == WakeReason.delivered { return result.unsafelyUnwrapped }
      lock.lock()
      waiters.remove(node)
      lock.unlock()
      throw job.pointee.cancellation() ?? CancellationError()
    }
  }

  /// Links a callback; false: settled already, it was not linked and will not be called. Linked, it is retained. `observes`:
  /// whether the callback sees a failure.
  @inlinable
  mutating func add(_ callback: WaitCallback, observes: Bool = true) -> Bool {
    if observes { isObserved.store(true, ordering: .relaxed) }
    lock.lock()
    defer { lock.unlock() }
    guard result == nil else { return false }
    _ = Unmanaged.passRetained(callback)
    waiters.append(callback.node)
    return true
  }

  /// Unlinks a callback; true: it was linked and will not be called.
  @inlinable
  mutating func remove(_ callback: WaitCallback) -> Bool {
    lock.lock()
    let wasLinked = callback.node.pointee.isLinked && result == nil
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
