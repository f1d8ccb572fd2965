internal import CCoroutine
import Dispatch

/// The host of a simulated executor's scheduler: the world's loop takes the messages and runs the jobs.
final class SimulatedHost: Host, @unchecked Sendable {
  // Sound because `world` is a constant, and `isEnded` is accessed under `lock`.
  let world: SimulatedWorld
  private let lock = ThreadLock()
  @exclusivity(unchecked) private var isEnded = false

  init(_ world: SimulatedWorld, _ queue: DispatchQueue?) {
    self.world = world
    // A world's queue has no thread, as a real one has none: what a program is refused there, it is refused here.
    super.init(
      label: queue?.label ?? "world",
      controlsOrder: true,
      mayPoll: false,
      hasOwnThread: queue == nil
    )
  }

  override var now: UInt64 { world.now }
  override var localNow: UInt64 { world.localNow }
  override func lasting(_ nanoseconds: Int64) -> Int64 { world.lasting(nanoseconds) }
  override func localLength(_ nanoseconds: UInt64) -> UInt64 { world.localLength(nanoseconds) }

  override func submit(_ scheduler: Scheduler, _ anchor: Anchor?) -> Bool {
    world.messageArrived()
    return true
  }

  /// Whether the calling thread drives this world.
  override func isCurrent(_ scheduler: Scheduler) -> Bool { SimulatedWorld.current === world }

  override func choose(_ count: Int) -> Int { count < 2 ? 0 : world.policy.choose(count) }

  override func simulated(_ queue: DispatchQueue?) -> Scheduler? { world.executor(of: queue).scheduler }

  override func nextJobID() -> UInt64? { world.takeID() }

  // Virtual time does not advance by itself: the world decides before each wait which job continues.
  override func mustGiveWay(_ carrier: UnsafeMutablePointer<Carrier>, _ job: JobRef, _ source: UInt) -> Bool {
    world.reachesPoint(job, source, holdsQueue: false)
  }

  override func mustGiveWay(atPointOf job: JobRef) -> Bool { world.reachesPoint(job, 0, holdsQueue: true) }

  override func willHandleInterrupt() { touchesEverything() }

  override func willThrowCancellation(_ job: JobRef) { world.throwsCancellation(job) }

  override func schedulerOfTimers(_ scheduler: Scheduler) -> Scheduler? { scheduler }

  override func random(_ carrier: UnsafeMutablePointer<Carrier>) -> Double {
    Double(carrier.pointee.drawNumber() >> 11) * 0x1p-53
  }

  override func touchesEverything() { world.footprints?.isUniversal = true }

  override func touches(_ object: UInt) { world.touches(object) }

  override func chooseFault(_ name: StaticString) -> Bool { world.policy.chooseFault(name) }

  override func requireReal(_ job: JobRef?, on target: Scheduler?, _ what: () -> String) throws {
    if target?.host is SimulatedHost { return }
    if let job, world.isOutside(job) { return }
    throw world.refuse(what(), job)
  }

  // MARK: Swift jobs
  //
  // A Task may outlive the world, if a cancelled co_await has left it, or if it waits for something outside. `admit`
  // and `end` share one lock. So a Swift job either is in the inbox before the world takes the remaining messages, or
  // is refused and runs on another executor.

  override func admit(_ push: () -> Void) -> Bool {
    lock.lock()
    defer { lock.unlock() }
    if isEnded { return false }
    if SimulatedWorld.current !== world { world.swiftJobArrivesFromOutside() }
    push()
    return true
  }

  /// Ends the host, and enqueues the remaining Swift jobs on Swift's global executor.
  func end(_ scheduler: Scheduler) {
    lock.lock()
    isEnded = true
    lock.unlock()
    scheduler.inbox.takeAll(as: nil, scheduler.handle)
    scheduler.runSwiftJobsElsewhere()
  }

  override func takesBlocking(_ job: JobRef, _ body: @autoclosure () -> @Sendable () -> Void) -> Bool {
    if world.isOutside(job) { return false }
    world.addBlocking(body())
    return true
  }
}
