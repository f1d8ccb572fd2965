import Synchronization

// The entry (SwitchEntry.swift) of a coroutine of another queue that begins a body of co_isolated. The body begins when
// the coroutine arrives. Until then the coroutine waits on its own scheduler, where a cancellation ends its wait even
// if the actor's queue is blocked.
//
// The drain that takes the entry begins the body, or puts the entry into the queue of the waiting bodies
// (Exclusion.swift). When its body may begin, the body is reserved: the entry is the owner of an exclusive body, and
// `standIn` represents a reentrant one. Then the entry returns to the ready queue, and the coroutine arrives or is
// dropped as any other.
//
//             the drain: the body may not begin yet           the coroutine was cancelled: sends the entry
//   QUEUED <----------------------------------------> WAITING ------------------------------------------> CANCELLED
//      |             the body may begin                                                                      ^
//      +--------------------------------------- the coroutine was cancelled ---------------------------------+
//
// Invariants
//  1. The queue that contains the entry has one reference: an inbox, a ready queue, or the queue of the bodies. `state`
//     changes by one atomic operation, which decides which thread moves that reference. A cancelled coroutine that
//     finds WAITING takes it from the queue of the bodies, and sends the entry to the drain. If it finds QUEUED, the
//     drain will take the entry anyway. A drain that finds CANCELLED instead of changing the state does not move the
//     entry, because the entry is in its inbox, or will be.
//  2. Everything but `state` is accessed by the destination's drain, or by the coroutine after it has arrived.
//  3. The drain does not use the coroutine's frame, where `body` is, before it has claimed the wait.

final class BodyEntry: SwitchEntry, @unchecked Sendable {
  // Sound because of the invariants above.

  /// The body, in the coroutine's frame; nil for an exclusive one.
  let body: UnsafeMutablePointer<ReentrantBody>?
  /// Whether the body has begun at the arrival.
  ///
  /// If not, the coroutine is inside another body of its own, and enters by itself.
  @exclusivity(unchecked) var hasBegun = false
  /// Whether the body may begin, and no other body may take that away.
  @exclusivity(unchecked) var isReserved = false
  /// The waiter that represents the coroutine while its body waits to begin; nil if it never had to wait.
  @exclusivity(unchecked) private(set) var standIn: UnsafeMutablePointer<StandIn>?
  private let state = Atomic<UInt8>(BodyEntry.queued)
  private static let (queued, waiting, cancelled): (UInt8, UInt8, UInt8) = (0, 1, 2)

  struct StandIn {
    /// The waiter, whose context is the entry.
    var waiter: Waiter
    var body: ReentrantBody
  }

  init(_ job: JobRef, to destination: Scheduler, body: UnsafeMutablePointer<ReentrantBody>?) {
    self.body = body
    super.init(job, to: destination)
  }

  deinit {
    standIn?.deinitialize(count: 1)
    standIn?.deallocate()
  }

  /// The waiter of the entry; the first field of the struct that represents it.
  var waiter: UnsafeMutablePointer<Waiter>? {
    standIn.map { UnsafeMutableRawPointer($0).assumingMemoryBound(to: Waiter.self) }
  }

  /// The body that is linked among the reentrant bodies while this one is reserved; nil for an exclusive body.
  var reservedBody: UnsafeMutablePointer<ReentrantBody>? {
    guard body != nil, let standIn else { return nil }
    let offset = MemoryLayout<StandIn>.offset(of: \.body).unsafelyUnwrapped
    return UnsafeMutableRawPointer(standIn).advanced(by: offset).assumingMemoryBound(to: ReentrantBody.self)
  }

  /// Goes over to WAITING; returns nil if the coroutine is cancelled, else the waiter to link.
  func beginToWait() -> UnsafeMutablePointer<Waiter>? {
    let (isWaiting, _) = state.compareExchange(
      expected: Self.queued,
      desired: Self.waiting,
      ordering: .acquiringAndReleasing
    )
    guard isWaiting else { return nil }
    let standIn = UnsafeMutablePointer<StandIn>.allocate(capacity: 1)
    var waiter = Waiter(callback: .fromOpaque(Unmanaged.passUnretained(self).toOpaque()))
    waiter.isLinked = false
    standIn.initialize(to: StandIn(waiter: waiter, body: ReentrantBody(job: record)))
    self.standIn = standIn
    return self.waiter
  }

  /// Goes back to QUEUED; returns false if the coroutine is cancelled.
  func endWaiting() -> Bool {
    state.compareExchange(expected: Self.waiting, desired: Self.queued, ordering: .acquiringAndReleasing).exchanged
  }

  /// The entry of a waiter that has no job.
  static func waiting(by waiter: UnsafeMutablePointer<Waiter>) -> BodyEntry {
    Unmanaged<BodyEntry>.fromOpaque(waiter.pointee.context.unsafelyUnwrapped).takeUnretainedValue()
  }

  override func mayArrive(at scheduler: Scheduler) -> Bool { scheduler.admits(self) }
  override func hasArrived(at scheduler: Scheduler) { scheduler.begin(self) }
  override func wasDropped(at scheduler: Scheduler) { scheduler.forget(self) }

  override func wasCancelled() {
    guard state.exchange(Self.cancelled, ordering: .acquiringAndReleasing) == Self.waiting else { return }
    destination._withUnsafeGuaranteedRef { $0.push(.job(record)) }
  }
}
