public import CCoroutine

/// Marks a step for tests: in a simulated world (the product CoroutineTesting) other coroutines may run here.
///
/// Outside a world, and outside a coroutine, it does nothing, and costs one load. In a world it may suspend: the world
/// chooses which coroutine continues, as at a wait, and resumes this one later. Coroutines of the same serial queue do
/// not run here. Never throws, and does not check cancellation. Any thread.
@inlinable
public func co_point() {
  if cco_has_worlds() { SimulatedPoint.reach() }
}

/// Returns whether the fault of this name happens now.
///
/// In a simulated world (the product CoroutineTesting) the world draws the result. Outside a world the result is false,
/// and the call costs one load. Never suspends; any thread.
///
/// ```swift
/// if co_fault("wal.sync") { throw DiskFull() }
/// ```
@inlinable
public func co_fault(_ name: StaticString) -> Bool {
  cco_has_worlds() && SimulatedPoint.draw(name)
}

@usableFromInline
enum SimulatedPoint {
  @usableFromInline
  static func reach() {
    guard let carrier = Carrier.current, let job = carrier.pointee.job, let scheduler = carrier.pointee.scheduler else {
      return
    }
    LockCheck.mayWait()
    guard scheduler._withUnsafeGuaranteedRef({ $0.host.mustGiveWay(atPointOf: job) }) else { return }
    carrier.pointee.grant(0)
    Carrier.giveWay(carrier, job)
  }

  @usableFromInline
  static func draw(_ name: StaticString) -> Bool {
    guard let scheduler = Carrier.current?.pointee.scheduler else { return false }
    return scheduler._withUnsafeGuaranteedRef { $0.host.chooseFault(name) }
  }
}
