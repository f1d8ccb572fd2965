/// The objects that the coroutines of a world touch.
///
/// A search uses them to leave out equivalent orders.
///
/// A coroutine touches each object that it has waited for, and the one that it is about to wait for, because a later
/// step may release what an earlier one has acquired. Objects are identified by their addresses. The addresses are
/// valid within one run, and a search compares steps of one run only.
///
/// A use that never waits (`trySend`, `fulfill`, `isFinished`) is known only when it happens: too late for the
/// schedules in which the step comes later. So the first such use of an object makes its step depend on every other
/// step. After that the object belongs to the coroutine's footprint, as if it had waited for the object.
package struct Footprints {
  private struct Footprint {
    var objects: Set<UInt> = []
    /// Whether the next step depends on every other step.
    var isUniversal = false
  }

  private var all: [UInt64: Footprint] = [:]
  /// The footprint of the current step.
  private var step = Footprint()

  package init() {}

  var isUniversal: Bool {
    get { step.isUniversal }
    set { step.isUniversal = newValue }
  }

  /// Records that the coroutine is about to wait for `source`; 0 means an unknown source.
  mutating func arrive(_ id: UInt64, _ source: UInt) {
    all[id, default: Footprint()].isUniversal = source == 0
    if source != 0 { all[id, default: Footprint()].objects.insert(source) }
  }

  /// Records that a step of `candidate` begins.
  mutating func begin(_ candidate: Candidate) {
    if let job = candidate.job {
      // The end of the coroutine settles its completion, for which other coroutines wait.
      let completion = job.handle._withUnsafeGuaranteedRef { $0.completion.id }
      all[candidate.id, default: Footprint()].objects.insert(completion)
      step = all[candidate.id].unsafelyUnwrapped
    } else {
      step = Footprint(isUniversal: true)
    }
  }

  /// Records that the current step, which is one of the candidate `id`, uses an object without waiting for it.
  mutating func touch(_ id: UInt64, _ object: UInt) {
    if step.isUniversal && id >= Candidate.noJob || step.objects.contains(object) { return }
    step.isUniversal = true
    step.objects.insert(object)
    all[id, default: Footprint()].objects.insert(object)
  }

  /// Whether the current step and the next step of a coroutine touch a common object.
  func touches(_ id: UInt64) -> Bool {
    guard let other = all[id] else { return false }
    return other.isUniversal || !other.objects.isDisjoint(with: step.objects)
  }
}
