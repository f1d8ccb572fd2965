/// Makes the choices of a world, and observes its steps.
package protocol WorldPolicy: AnyObject {
  /// Returns the index of the candidate to run.
  ///
  /// There are at least two candidates. If `continues` is true, candidate 0 is the running coroutine. `previous` is the
  /// number of the coroutine that ran last. If that coroutine is a candidate and `continues` is false, it has yielded.
  func chooseNext(_ candidates: UnsafeBufferPointer<Candidate>, continues: Bool, previous: UInt64) -> Int
  /// Returns an index below `count`; for every choice but that of the next coroutine.
  func choose(_ count: Int) -> Int
  /// Returns whether the fault happens.
  func chooseFault(_ name: StaticString) -> Bool
  /// Called after each step, if `SimulatedWorld.footprints` is not nil.
  ///
  /// If `isUniversal` is true, the step depends on every other step. `isDependent` returns whether this step and the
  /// next step of the coroutine with the given number touch a common object.
  func stepFinished(_ id: UInt64, isUniversal: Bool, _ isDependent: (UInt64) -> Bool)
  /// Called after each step, if `SimulatedWorld.isTraced`.
  func stepEnded(_ step: SimulatedStep)
  func deadlock(_ dump: String) -> any Error
  func leftRunning(_ dump: String) -> any Error
  /// Returns the error for a wait for the real world; `wait` names the coroutine and what it waits for.
  func realWait(_ wait: String) -> any Error
  /// Returns the error of a world that has reached its limit, in nanoseconds of its time.
  ///
  /// A nil limit means that the world took too many steps while no time passed.
  func overLimit(_ limit: UInt64?, _ dump: String) -> any Error
}

/// One step of a run, as the table of a failing run shows it.
package struct SimulatedStep {
  /// The number of the coroutine; 0 for a handler or a blocking body.
  package var id: UInt64
  package var name: String?
  package var launchSite: String
  /// How the step ended: "waiting to receive …", "interrupted" (it could have continued), "ended".
  package var end: String
  package var now: UInt64
}
