/// What a world asks and tells its owner.
package protocol WorldPolicy: AnyObject {
  /// Returns the index of the candidate to run.
  ///
  /// There are at least two. `continues`: candidate 0 is the running coroutine. `previous`: the number of the
  /// coroutine that ran last; if it is a candidate and does not continue, it has yielded.
  func chooseNext(_ candidates: UnsafeBufferPointer<Candidate>, continues: Bool, previous: UInt64) -> Int
  /// Returns an index below `count`, for everything that is not the next coroutine.
  func choose(_ count: Int) -> Int
  /// Returns whether the fault happens.
  func chooseFault(_ name: StaticString) -> Bool
  /// Called after each step, if `SimulatedWorld.footprints` are kept.
  ///
  /// `isUniversal`: the step depends on every other. `isDependent`: whether the step and the next one of the coroutine
  /// of that number touch one object.
  func stepFinished(_ id: UInt64, isUniversal: Bool, _ isDependent: (UInt64) -> Bool)
  /// Called after each step, if `SimulatedWorld.isTraced`.
  func stepEnded(_ step: SimulatedStep)
  func deadlock(_ dump: String) -> any Error
  func leftRunning(_ dump: String) -> any Error
  func realWait(_ place: String) -> any Error
}

/// A step of a run, for its description.
package struct SimulatedStep {
  /// The number of the coroutine; 0 for a handler or a blocking body.
  package var id: UInt64
  package var name: String?
  package var launchSite: String
  /// How the step ended: "waiting to receive …", "ended".
  package var end: String
  package var now: UInt64
}
