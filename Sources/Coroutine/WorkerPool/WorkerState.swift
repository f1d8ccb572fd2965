import Synchronization

/// The part of a scheduler that only a worker of the pool has.
///
///     field           access
///     index           constant
///     handlers        any thread; it has a lock
///     taking          the drain and rescuers, to take from the inbox (Inbox.swift)
///     isRescued       set by the watchdog; cleared by the rescuer (TakeOver.swift)
///     poller          set once (WorkerPool+Pollers.swift); read by any thread
///     wasJustOffered  set by a worker that has work to give; cleared by this one (WorkerPool.swift)
///     swiftJobChanges written by the drain (WorkerPool+Swift.swift); read by the watchdog and by dumps
///     stealBackoff    the drain only
///
/// A worker lives as long as the process, and so does this object. Its scheduler has an unmanaged reference, so that no
/// use counts references.
final class WorkerState: @unchecked Sendable {
  // Sound because of the table above.

  /// The number of the worker in its pool; that of a spare worker is not below the number of workers.
  let index: UInt8
  let handlers = HandlerQueue()
  /// Held by a thread that takes from the worker's inbox.
  let taking = ThreadLock()
  /// Whether a worker was asked to take over from this one, and has not begun.
  let isRescued = Atomic<Bool>(false)
  /// The poller, as an unmanaged reference; 0 before the first wait for a descriptor, and on a spare worker.
  let poller = Atomic<UInt>(0)
  /// Whether a worker with work to give has woken this one.
  let wasJustOffered = Atomic<Bool>(false)
  /// How often one of the pool's Swift jobs has begun or ended here: odd while one runs.
  ///
  /// For the report of a stall.
  let swiftJobChanges = Atomic<UInt64>(0)
  /// The record of this worker's steals.
  @exclusivity(unchecked) var stealBackoff = StealBackoff()

  init(_ index: Int) { self.index = UInt8(index) }

  /// Notes that a Swift job begins or ends.
  func noteSwiftJob() {
    swiftJobChanges.store(swiftJobChanges.load(ordering: .relaxed) &+ 1, ordering: .relaxed)
  }
}

extension Scheduler {
  /// Calls `body` with the state of a worker; on workers only.
  @inline(__always)
  func asWorker<Output>(_ body: (WorkerState) -> Output) -> Output {
    worker.unsafelyUnwrapped._withUnsafeGuaranteedRef(body)
  }

  /// The number of a worker in its pool; of workers only.
  var workerIndex: Int { asWorker { Int($0.index) } }
}
