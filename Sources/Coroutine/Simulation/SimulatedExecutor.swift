internal import CCoroutine
import Dispatch

/// Stands in a world for a queue, or for the worker pool: a scheduler, and the carrier that runs its jobs.
///
/// - The executor of a queue is serial. It lists one candidate at a time, its head. The others are in `waiting`, first
///   in, first out.
/// - The executor of the pool lists all its jobs and Swift jobs. It lists its handlers one at a time, because the
///   handlers of a worker run one after another.
final class SimulatedExecutor {
  let scheduler: Scheduler
  /// In memory of its own, because a coroutine keeps the address over a switch.
  let carrier: UnsafeMutablePointer<Carrier>
  let isSerial: Bool
  /// Retained, so that no other queue gets its address while the world runs.
  private let queue: DispatchQueue?
  @exclusivity(unchecked) private var waiting = MessageQueue()
  @exclusivity(unchecked) private var hasHead = false
  private let world: SimulatedWorld
  private let host: SimulatedHost
  private let index: Int

  init(_ world: SimulatedWorld, _ queue: DispatchQueue?, index: Int, seed: UInt64) {
    self.world = world
    self.queue = queue
    self.index = index
    isSerial = queue != nil
    host = SimulatedHost(world, queue)
    scheduler = Scheduler(host: host, anchor: nil, pool: nil)
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

  /// Adds a job, a Swift job or a handler that has become ready.
  ///
  /// A queue's order is that of these calls, so the running step has touched the queue.
  func add(_ message: Inbox.Message, to candidates: inout CandidateList) {
    switch message {
    case .swiftJob where !isSerial:
      candidates.append(Candidate(message, id: Candidate.noJob | world.takeID(), self, isHead: false))
    default:
      if !isSerial, let id = Candidate.coroutine(message) {
        return candidates.append(Candidate(message, id: id, self, isHead: false))
      }
      world.touches(UInt(bitPattern: carrier))
      waiting.append(message)
      listHead(&candidates)
    }
  }

  /// Lists the first waiting candidate, if the executor has no head.
  private func listHead(_ candidates: inout CandidateList) {
    guard !hasHead, let message = waiting.popFirst() else { return }
    hasHead = true
    let id = Candidate.coroutine(message) ?? Candidate.noJob | UInt64(index) << 32
    candidates.append(Candidate(message, id: id, self, isHead: true))
  }

  /// Lists the next head; called after a step of a candidate of this executor.
  func ended(_ candidate: Candidate, _ candidates: inout CandidateList) {
    guard candidate.isHead else { return }
    hasHead = false
    listHead(&candidates)
  }

  /// Lets the other jobs of the queue overtake a coroutine that is about to wait.
  func letOvertake(_ candidate: inout Candidate, _ candidates: inout CandidateList) {
    guard candidate.isHead else { return }
    candidate.isHead = false
    hasHead = false
    listHead(&candidates)
  }

  func cancelAll(where isMeant: (JobRef) -> Bool = { _ in true }) {
    var jobs: [AnyJob] = []
    // Read without the lock: this thread alone launches and ends jobs of the world, and a dump only reads the list.
    var job = scheduler.firstLive
    while let current = job {
      if isMeant(current) { jobs.append(current.handle.takeUnretainedValue()) }
      job = current.pointee.nextLive
    }
    // In the order of their launches.
    for job in jobs.reversed() { job.cancel() }
  }

  /// Releases the memory and the pins that a drain releases when it goes idle.
  func close() {
    host.end(scheduler)
    scheduler.unpinHandlers()
    scheduler.readyQueue.stackCache.pointee.freeAll()
    StackTrimmer.trimIfMany()
  }
}

/// The messages that wait in an executor, first in, first out, in the inbox's encoding.
struct MessageQueue {
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
