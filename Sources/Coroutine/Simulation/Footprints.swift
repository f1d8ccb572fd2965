/// What the coroutines of a world touch, for a search that leaves out equivalent orders.
///
/// A coroutine touches what it has waited for, and what it is about to wait for: a later step may release what an
/// earlier one has taken. Objects are addresses, valid within one run: a search compares steps of the same run only.
package struct Footprints {
  private struct Footprint {
    var objects: Set<UInt> = []
    /// Whether the next step depends on every other.
    var isUniversal = false
  }

  private var all: [UInt64: Footprint] = [:]
  /// The present step.
  private var step = Footprint()

  package init() {}

  var isUniversal: Bool {
    get { step.isUniversal }
    set { step.isUniversal = newValue }
  }

  /// The coroutine is about to wait for `source`, or for something unknown if that is 0.
  mutating func arrive(_ id: UInt64, _ source: UInt) {
    all[id, default: Footprint()].isUniversal = source == 0
    if source != 0 { all[id, default: Footprint()].objects.insert(source) }
  }

  /// A step begins.
  mutating func begin(_ candidate: Candidate) {
    if let job = candidate.job {
      // Its end settles its completion, for which others wait.
      let completion = UInt(bitPattern: job.handle._withUnsafeGuaranteedRef { $0.completion })
      all[candidate.id, default: Footprint()].objects.insert(completion)
      step = all[candidate.id].unsafelyUnwrapped
    } else {
      step = Footprint(isUniversal: true)
    }
  }

  /// Whether the present step and the next one of a coroutine touch one object.
  func touches(_ id: UInt64) -> Bool {
    guard let other = all[id] else { return false }
    return other.isUniversal || !other.objects.isDisjoint(with: step.objects)
  }
}
