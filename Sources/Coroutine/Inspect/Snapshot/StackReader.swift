internal import CCoroutine

/// Reads where parked jobs are: the return addresses of their frames.
///
/// `Sources/CCoroutine/Inspect/Walk.c` has the argument why what it returns was there at one moment, although nothing
/// is stopped. While a reader lives, no memory of stacks is unmapped; so it lives as long as one snapshot.
struct StackReader: ~Copyable {
  /// A job as it was inspected, with its stack.
  struct Entry {
    var job: InspectedJob
    var stack: [UInt] = []
    var isTorn = false
  }

  /// The number of stacks that are walked together.
  static var batch: Int { 16 }
  /// The number of times that a job which moves is read again.
  private static var repeats: Int { 4 }

  let status: cco_walk_status
  private var walk = cco_walk()
  private let frames: UnsafeMutablePointer<UInt>
  private let targets: UnsafeMutablePointer<cco_walk_target>
  /// The stacks that were read, by a hash of their frames.
  ///
  /// Most coroutines of a server share a few of them.
  private var known: [UInt64: [[UInt]]] = [:]

  init() {
    status = cco_walk_begin(&walk)
    frames = .allocate(capacity: Self.batch * Self.most)
    targets = .allocate(capacity: Self.batch)
  }

  deinit {
    if status == CCO_WALK_READY {
      var walk = walk
      cco_walk_end(&walk)
    }
    frames.deallocate()
    targets.deallocate()
  }

  private static var most: Int { Int(CCO_MOST_FRAMES) }

  /// Inspects jobs, `batch` at most, which the caller holds, and reads their stacks.
  mutating func read(_ jobs: ArraySlice<AnyJob>) -> [Entry] {
    var entries = jobs.map { Entry(job: InspectedJob($0)) }
    guard status == CCO_WALK_READY else { return entries }
    var open = entries.indices.filter { entries[$0].job.isParked }
    var rounds = 0
    while !open.isEmpty {
      let moved = walk(open, &entries)
      open = []
      rounds += 1
      for index in moved {
        if rounds > Self.repeats {
          entries[index].isTorn = true
          continue
        }
        entries[index].job = InspectedJob(entries[index].job.job)
        if entries[index].job.isParked { open.append(index) }
      }
    }
    return entries
  }

  /// Walks the stacks of some entries, and returns those that moved.
  private mutating func walk(_ indices: [Int], _ entries: inout [Entry]) -> [Int] {
    for (position, index) in indices.enumerated() {
      let target = entries[index].job.walkTarget(frames + position * Self.most, UInt32(Self.most))
      (targets + position).initialize(to: target)
    }
    cco_walk_stacks(&walk, targets, indices.count)
    var moved: [Int] = []
    for (position, index) in indices.enumerated() {
      if targets[position].outcome != CCO_WALK_WALKED {
        moved.append(index)
      } else {
        let found = UnsafeBufferPointer(start: frames + position * Self.most, count: Int(targets[position].count))
        entries[index].stack = shared(found)
      }
    }
    return moved
  }

  /// The array with these frames, one for all equal stacks.
  private mutating func shared(_ frames: UnsafeBufferPointer<UInt>) -> [UInt] {
    var hash: UInt64 = 0xCBF2_9CE4_8422_2325
    for frame in frames { hash = (hash ^ UInt64(frame)) &* 0x0000_0100_0000_01B3 }
    for stack in known[hash, default: []] where stack.elementsEqual(frames) { return stack }
    let stack = Array(frames)
    known[hash, default: []].append(stack)
    return stack
  }
}

extension InspectedJob {
  /// Whether the job has left a stack to which it returns.
  var isParked: Bool { isWaiting || state == .ready }

  /// What the walker checks before and after.
  fileprivate func walkTarget(_ frames: UnsafeMutablePointer<UInt>, _ most: UInt32) -> cco_walk_target {
    let record = job.record
    return cco_walk_target(
      // Sound because it is the first stored property.
      context: UnsafeRawPointer(record),
      // Sound because a stored property of a record keeps its address, and an Atomic has the layout of its value.
      wait: withUnsafePointer(to: record.pointee.wait) {
        UnsafeRawPointer($0).assumingMemoryBound(to: UInt64.self)
      },
      since: withUnsafePointer(to: record.pointee.waitingSince) {
        UnsafeRawPointer($0).assumingMemoryBound(to: UInt64.self)
      },
      wait_word: word,
      since_word: sinceWord,
      frames: frames,
      most: most,
      count: 0,
      outcome: CCO_WALK_NONE,
      is_whole: false,
      own: nil,
      stack: nil
    )
  }
}
