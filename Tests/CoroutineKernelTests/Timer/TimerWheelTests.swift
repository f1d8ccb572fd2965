import Testing

@testable import Coroutine
@testable import CoroutineTesting

/// Compares the wheel with a sorted list.
@Suite(.timeLimit(.minutes(10)))
struct TimerWheelTests {
  /// Nodes at fixed addresses, each with its number in its epoch.
  private final class Nodes {
    let all: UnsafeMutablePointer<TimerNode>
    private let job = JobRef.allocate(capacity: 1)
    private var used = 0
    private let capacity: Int

    init(_ capacity: Int) {
      self.capacity = capacity
      all = .allocate(capacity: capacity)
    }

    deinit {
      all.deinitialize(count: used).deallocate()
      job.deallocate()
    }

    func make(_ deadline: UInt64, _ number: Int) -> UnsafeMutablePointer<TimerNode> {
      precondition(used < capacity)
      let node = all + used
      node.initialize(to: TimerNode(deadline: deadline, effect: .wake(job, WaitEpoch(word: UInt64(number)))))
      used += 1
      return node
    }
  }

  @Test func `releases the calls that are still queued when it is released`() {
    let trace = Trace()
    do {
      var wheel = TimerWheel()
      let call = LastWords(trace)
      call.node.initialize(to: TimerNode(deadline: 1 << 40, effect: .call(Unmanaged.passRetained(call))))
      wheel.add(call.node, now: 0)
    }
    #expect(trace.all == ["gone"])
  }

  private final class LastWords: TimerCall, @unchecked Sendable {
    // Sound because a trace is thread-safe.
    private let trace: Trace
    init(_ trace: Trace) { self.trace = trace }
    override func fire() { trace("fired") }
    deinit { trace("gone") }
  }

  @Test(arguments: [1, 2, 3, 4, 5, 6, 7, 8] as [UInt64])
  func `fires due timers, once, in order of deadline and then of adding, whichever are removed`(_ seed: UInt64) {
    var random = SplitMix(state: seed)
    let count = isSanitized ? 3_000 : 20_000
    let nodes = Nodes(count)
    var wheel = TimerWheel()
    var model: [(deadline: UInt64, number: Int, node: UnsafeMutablePointer<TimerNode>)] = []
    var now: UInt64 = random.next() >> 20
    for number in 0..<count {
      switch random.next() % 10 {
      case 0..<6:
        // From nanoseconds to years ahead, and some in the past.
        let ahead = random.next() >> (8 + random.next() % 50)
        let deadline = random.next() % 16 == 0 ? now &- min(now, ahead % 1000) : now &+ ahead
        let node = nodes.make(deadline, number)
        wheel.add(node, now: now)
        model.append((deadline, number, node))
      case 6..<8 where !model.isEmpty:
        let index = Int(random.next() % UInt64(model.count))
        let isRemoved = wheel.remove(model[index].node)
        #expect(isRemoved, "seed \(seed)")
        let isRemovedAgain = wheel.remove(model[index].node)
        #expect(!isRemovedAgain, "seed \(seed)")
        model.remove(at: index)
      default:
        let next = wheel.nextEvent()
        if let earliest = model.map(\.deadline).min() {
          #expect((next ?? .max) <= max(earliest, now), "seed \(seed): an event later than the earliest deadline")
        }
        now = random.next() % 3 == 0 ? max(now, next ?? now) : now &+ random.next() >> (16 + random.next() % 40)
        var fired: [Int] = []
        wheel.advance(to: now) { effect, _ in
          guard case .wake(_, let epoch) = effect else { return }
          fired.append(Int(epoch.word))
        }
        let time = now
        let due = model.filter { $0.deadline <= time }.sorted { ($0.deadline, $0.number) < ($1.deadline, $1.number) }
        model.removeAll { $0.deadline <= time }
        #expect(fired == due.map(\.number), "seed \(seed)")
        for timer in due where random.next() % 2 == 0 {
          let isRemoved = wheel.remove(timer.node)
          #expect(!isRemoved, "seed \(seed): fired and still there")
        }
      }
      #expect(wheel.count == model.count, "seed \(seed)")
    }
  }

  @Test func `the memory of many timers is freed with them, and removing fired timers does not access it`() {
    let nodes = Nodes(10_000)
    var wheel = TimerWheel()
    for round in 0..<2 {
      let crowd = (0..<5000).map { nodes.make(UInt64($0) * 1000, round * 5000 + $0) }
      for node in crowd { wheel.add(node, now: 0) }
      var fired = 0
      wheel.advance(to: .max / 2) { _, _ in fired += 1 }
      #expect(fired == 5000 && wheel.count == 0)
      for node in crowd {
        let isRemoved = wheel.remove(node)
        #expect(!isRemoved)
      }
    }
  }

  @Test func `the memory of many timers is freed even if a few stay, and those fire or are removed as usual`() {
    let nodes = Nodes(20_000)
    var wheel = TimerWheel()
    // Every thousandth stays for long.
    let crowd = (0..<20_000).map { nodes.make($0 % 1000 == 0 ? 1 << 40 + UInt64($0) : UInt64($0) * 1000, $0) }
    for node in crowd { wheel.add(node, now: 0) }
    #expect(wheel.capacity >= 20_000)
    var fired: [Int] = []
    func advance(to now: UInt64) {
      wheel.advance(to: now) { effect, _ in
        guard case .wake(_, let epoch) = effect else { return }
        fired.append(Int(epoch.word))
      }
    }
    // One half fires, the other half is removed.
    advance(to: 10_000 * 1000)
    for (number, node) in crowd.enumerated() where number > 10_000 && number % 1000 != 0 {
      let isRemoved = wheel.remove(node)
      #expect(isRemoved)
    }
    #expect(wheel.count == 20)
    // The pool is replaced when the clock is next read.
    advance(to: 10_001 * 1000)
    #expect(wheel.capacity <= TimerPool.kept)
    for (number, node) in crowd.enumerated() where number % 1000 != 0 {
      let isRemoved = wheel.remove(node)
      #expect(!isRemoved)
    }
    let isRemoved = wheel.remove(crowd[5000])
    #expect(isRemoved)
    fired = []
    advance(to: 1 << 41)
    #expect(fired == (0..<20).map { $0 * 1000 }.filter { $0 != 5000 })
    #expect(wheel.count == 0)
  }
}
