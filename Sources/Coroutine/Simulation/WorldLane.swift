internal import CCoroutine
import Dispatch

/// A queue of a world, or its worker pool: a scheduler, and the carrier that runs its jobs.
///
/// A serial lane lists one candidate at a time, its head; the others are in `waiting`, first in, first out. The pool
/// lists all its jobs, and its handlers one at a time, because the handlers of a worker run one after another.
final class WorldLane {
  let scheduler: Scheduler
  /// In memory of its own: a coroutine keeps its address over a switch.
  let carrier: UnsafeMutablePointer<Carrier>
  let isSerial: Bool
  /// Held, so that no other queue gets its address.
  private let queue: DispatchQueue?
  private var waiting = WorldQueue()
  private var hasHead = false
  private let world: SimulatedWorld
  private let index: Int

  init(_ world: SimulatedWorld, _ queue: DispatchQueue?, index: Int, seed: UInt64) {
    self.world = world
    self.queue = queue
    self.index = index
    isSerial = queue != nil
    scheduler = Scheduler(host: SimulatedHost(world, queue), anchor: nil, pool: nil)
    carrier = .allocate(capacity: 1)
    carrier.initialize(
      to: Carrier(scheduler: .passUnretained(scheduler), readyQueue: scheduler.readyQueue, now: world.now)
    )
    carrier.pointee.random = seed &+ UInt64(index) &* 0x9E37_79B9_7F4A_7C15
    // The world takes every message itself, so a push must start no drain; see `waitOutside`.
    _ = scheduler.inbox.wakeUp()
  }

  deinit {
    carrier.deinitialize(count: 1)
    carrier.deallocate()
  }

  /// Adds what has become ready.
  func add(_ message: Inbox.Message, to candidates: inout CandidateList) {
    if case .job(let job) = message, !isSerial {
      return candidates.append(Candidate(message, id: job.pointee.label.id, self, isHead: false))
    }
    waiting.append(message)
    listHead(&candidates)
  }

  /// Lists the next one in line, if none is listed.
  private func listHead(_ candidates: inout CandidateList) {
    guard !hasHead, let message = waiting.popFirst() else { return }
    hasHead = true
    var id = Candidate.noJob | UInt64(index) << 32
    if case .job(let job) = message { id = job.pointee.label.id }
    candidates.append(Candidate(message, id: id, self, isHead: true))
  }

  /// Called after a step of a candidate of this lane.
  func ended(_ candidate: Candidate, _ candidates: inout CandidateList) {
    guard candidate.isHead else { return }
    hasHead = false
    listHead(&candidates)
  }

  /// Lets the coroutine that stands before a wait be overtaken by its queue.
  func letOvertake(_ candidate: inout Candidate, _ candidates: inout CandidateList) {
    guard candidate.isHead else { return }
    candidate.isHead = false
    hasHead = false
    listHead(&candidates)
  }

  func cancelAll(where isMeant: (JobRef) -> Bool = { _ in true }) {
    var jobs: [AnyJob] = []
    // Read without its lock: this thread alone launches and ends jobs of the world, and a dump only reads.
    var job = scheduler.firstLive
    while let current = job {
      if isMeant(current) { jobs.append(current.handle.takeUnretainedValue()) }
      job = current.pointee.nextLive
    }
    // In the order of their launches.
    for job in jobs.reversed() { job.cancel() }
  }

  /// Gives back what a drain that goes idle gives back.
  func close() {
    scheduler.unpinHandlers()
    scheduler.readyQueue.stackCache.pointee.freeAll()
    StackTrimmer.trimIfMany()
  }
}

/// What waits in a serial lane, first in, first out: jobs and work items as words.
struct WorldQueue {
  private var words: [UInt] = []
  private var first = 0

  mutating func append(_ message: Inbox.Message) { words.append(Inbox.encode(message)) }

  mutating func popFirst() -> Inbox.Message? {
    guard first < words.count else { return nil }
    defer {
      first += 1
      if first == words.count { (words, first) = ([], 0) }
    }
    return Inbox.decode(words[first])
  }
}

/// Drives a lane's scheduler: the world's loop takes its messages and runs its jobs.
final class SimulatedHost: Host, @unchecked Sendable {
  // Sound because its property is a constant.
  let world: SimulatedWorld

  init(_ world: SimulatedWorld, _ queue: DispatchQueue?) {
    self.world = world
    super.init(label: queue?.label ?? "world", hasVirtualTime: true, controlsOrder: true)
  }

  override var now: UInt64 { world.now }

  override func submit(_ scheduler: Scheduler, _ anchor: Anchor?) -> Bool {
    world.messageArrived()
    return true
  }

  /// Whether the calling thread drives this world.
  override func isCurrent(_ scheduler: Scheduler) -> Bool { SimulatedWorld.current === world }

  override func choose(_ count: Int) -> Int { count < 2 ? 0 : world.policy.choose(count) }

  override func simulated(_ queue: DispatchQueue?) -> Scheduler? { world.lane(of: queue).scheduler }

  override func nextJobID() -> UInt64? { world.takeID() }

  override func reachesPoint(_ job: JobRef, _ source: UInt, holdsQueue: Bool) -> Bool {
    world.reachesPoint(job, source, holdsQueue: holdsQueue)
  }

  override func hasInterrupted() { world.footprints?.isUniversal = true }

  override func throwsCancellation(_ job: JobRef) { world.throwsCancellation(job) }

  override func chooseFault(_ name: StaticString) -> Bool { world.policy.chooseFault(name) }

  override func requireReal(_ job: JobRef?, _ what: () -> String) throws {
    if let job, world.isOutside(job) { return }
    throw world.refuse(what(), job)
  }

  override func takesBlocking(_ job: JobRef, _ body: @escaping @Sendable () -> Void) -> Bool {
    if world.isOutside(job) { return false }
    world.addBlocking(body)
    return true
  }
}
