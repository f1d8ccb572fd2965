public import Synchronization

// The inbox through which other threads reach a scheduler: a lock-free stack of messages. Its head word also says
// whether a drain is under way, so that exactly one push to an idle scheduler finds that it must start one.
//
//   head = idle     no drain, and nothing is queued
//   head = 0        a drain is scheduled or running; nothing is queued
//   head = message  a drain is scheduled or running; messages, newest first
//
//   push      idle -> message   the pushing thread must start a drain
//             0 / m -> message  the drain will see it
//   wakeUp    idle -> 0         as a push without a message (timers)
//   takeAll   m -> 0            the drain
//   takeOut   m -> 0 -> m       a rescuer of a stuck worker: kept messages go back below newer ones
//   goIdle    0 -> idle         the drain only; fails if a message was pushed meanwhile
//
// No wake-up is lost: a message is pushed either before goIdle's compare-and-swap, which then fails, or after it, and
// then the pushing thread sees `idle` and starts a drain. There are never two drains: only the transition out of `idle`
// starts one.
//
// Messages are handled in the order of their pushes. Those that `takeOut` has in its hands are older than any in the
// inbox, so no other thread may take messages meanwhile: a thread that takes from a worker's inbox holds `taking` of
// its WorkerState. So does one that looks through the messages (`contains`): nobody takes them, or changes their links,
// meanwhile. A queue's inbox is emptied by its drain only.
//
// A message is an address with a tag in its low bits: a job (linked by `next`), a work item, or a job of Swift
// Concurrency.

@usableFromInline
struct Inbox: ~Copyable {
  @usableFromInline static var idle: UInt { 1 << 2 }  // no record lives at address 4
  @usableFromInline let head = Atomic<UInt>(4)

  enum Message {
    case job(JobRef)
    case work(UnsafeMutablePointer<WorkItem>)
    case swiftJob(SwiftJobRef)
  }

  init() {}

  /// Pushes a message, and returns whether the caller must start a drain.
  borrowing func push(_ message: Message) -> Bool {
    let word = Self.encode(message)
    var old = head.load(ordering: .relaxed)
    while true {
      Self.setLink(word, old == Self.idle ? 0 : old)
      let attempt = head.weakCompareExchange(
        expected: old,
        desired: word,
        successOrdering: .acquiringAndReleasing,
        failureOrdering: .relaxed
      )
      if attempt.exchanged { return old == Self.idle }
      old = attempt.original
    }
  }

  /// Moves the inbox out of `idle` without a message, and returns whether the caller must start a drain.
  borrowing func wakeUp() -> Bool {
    head.compareExchange(
      expected: Self.idle,
      desired: 0,
      ordering: .sequentiallyConsistent
    ).exchanged
  }

  /// Whether there are messages; one plain load.
  var hasMessages: Bool { head.load(ordering: .relaxed) > Self.idle }

  /// Whether no drain is scheduled or runs; for a thread that may be wrong by the time that it knows.
  var isIdle: Bool { head.load(ordering: .relaxed) == Self.idle }

  /// Passes every message to `body`, oldest first.
  ///
  /// Called by the drain. From the inbox of a worker, a rescuer may take messages as well.
  borrowing func takeAll(as worker: Unmanaged<WorkerState>?, _ body: (Message) -> Void) {
    guard hasMessages else { return }
    if let worker { worker._withUnsafeGuaranteedRef { $0.taking.lock() } }
    let newestFirst = grab()
    if let worker { worker._withUnsafeGuaranteedRef { $0.taking.unlock() } }
    var messages = Taken(reversing: newestFirst)
    while let message = messages.popFirst() { body(message) }
  }

  /// Messages that were taken out, oldest first.
  struct Taken {
    private var first: UInt = 0

    fileprivate init(reversing newestFirst: UInt) {
      var word = newestFirst
      while word != 0 {
        let next = Inbox.link(word)
        add(older: word)
        word = next
      }
    }

    /// Adds a message that is older than all others.
    fileprivate mutating func add(older word: UInt) {
      Inbox.setLink(word, first)
      first = word
    }

    /// Takes the oldest one; its link is not read any more.
    mutating func popFirst() -> Message? {
      guard first != 0 else { return nil }
      let word = first
      first = Inbox.link(word)
      return Inbox.decode(word)
    }
  }

  /// Takes out the wanted messages, and leaves the others as they were.
  ///
  /// Called by a rescuer, of the inbox of a worker. `mustStart`: the drain may have gone idle while the inbox seemed to
  /// be empty, so the caller must start one.
  borrowing func takeOut(
    from worker: WorkerState,
    where isWanted: (Message) -> Bool
  ) -> (messages: Taken, mustStart: Bool) {
    worker.taking.lock()
    defer { worker.taking.unlock() }
    var taken = Taken(reversing: 0)
    var kept: UInt = 0
    var oldestKept: UInt = 0
    var word = grab()
    while word != 0 {
      let next = Self.link(word)
      if isWanted(Self.decode(word)) {
        taken.add(older: word)
      } else {
        if oldestKept == 0 { kept = word } else { Self.setLink(oldestKept, word) }
        oldestKept = word
      }
      word = next
    }
    return (taken, kept != 0 && putBack(kept, oldest: oldestKept))
  }

  /// Whether a message of a worker's inbox is wanted; any thread.
  borrowing func contains(from worker: WorkerState, where isWanted: (Message) -> Bool) -> Bool {
    guard hasMessages else { return false }
    worker.taking.lock()
    defer { worker.taking.unlock() }
    var word = head.load(ordering: .acquiring)
    while word > Self.idle {
      if isWanted(Self.decode(word)) { return true }
      word = Self.link(word)
    }
    return false
  }

  /// Puts messages back below newer ones, and returns whether the caller must start a drain.
  private borrowing func putBack(_ kept: UInt, oldest: UInt) -> Bool {
    var kept = kept
    Self.setLink(oldest, 0)
    while true {
      let old = head.load(ordering: .relaxed)
      if old <= Self.idle {
        if head.compareExchange(expected: old, desired: kept, ordering: .acquiringAndReleasing).exchanged {
          return old == Self.idle
        }
        continue
      }
      let newer = grab()
      var bottom = newer
      while Self.link(bottom) != 0 { bottom = Self.link(bottom) }
      Self.setLink(bottom, kept)
      kept = newer
    }
  }

  /// Takes all messages, linked, newest first; 0 means none.
  private borrowing func grab() -> UInt {
    var newestFirst = head.load(ordering: .relaxed)
    while newestFirst > Self.idle {
      let attempt = head.weakCompareExchange(
        expected: newestFirst,
        desired: 0,
        successOrdering: .acquiringAndReleasing,
        failureOrdering: .relaxed
      )
      if attempt.exchanged { return newestFirst }
      newestFirst = attempt.original
    }
    return 0
  }

  /// Ends the drain unless a message was pushed.
  ///
  /// Called by the drain only.
  borrowing func goIdle() -> Bool {
    head.compareExchange(
      expected: 0,
      desired: Self.idle,
      ordering: .sequentiallyConsistent
    ).exchanged
  }

  // MARK: The tags

  static func encode(_ message: Message) -> UInt {
    switch message {
    case .job(let job): UInt(bitPattern: job)
    case .work(let item): UInt(bitPattern: item) | 1
    case .swiftJob(let job): UInt(bitPattern: job) | 2
    }
  }

  static func decode(_ word: UInt) -> Message {
    switch word & 3 {
    case 0: .job(JobRef(bitPattern: word)!)
    case 1: .work(UnsafeMutablePointer(bitPattern: word & ~3)!)
    default: .swiftJob(SwiftJobRef(bitPattern: word & ~3)!)
    }
  }

  static func link(_ word: UInt) -> UInt {
    switch decode(word) {
    case .job(let job): UInt(bitPattern: job.pointee.next)
    case .work(let item): item.pointee.link
    case .swiftJob(let job): job.pointee.link
    }
  }

  static func setLink(_ word: UInt, _ link: UInt) {
    switch decode(word) {
    // `next` holds a tagged word while the job is in an inbox, and a pointer again once it is in a ready queue.
    case .job(let job): job.pointee.next = JobRef(bitPattern: link)
    case .work(let item): item.pointee.link = link
    case .swiftJob(let job): job.pointee.link = link
    }
  }
}

// MARK: - Work

/// A queued piece of work that is not a job: a function, and a link for the inbox or work queue that holds it.
///
/// It is stored in the object that the work belongs to, so queueing does not allocate: the function finds the object by
/// the item's address. A queued item owns one reference to that object, which the function takes over.
struct WorkItem {
  /// Receives the item's address.
  typealias Function = @convention(c) (_ item: UnsafeMutableRawPointer) -> Void

  let function: Function
  /// Accessed only by the inbox or work queue that holds the item.
  var link: UInt = 0

  init(_ function: @escaping Function) { self.function = function }
}

extension UnsafeMutablePointer<WorkItem> {
  /// Performs the work, and gives up the reference that the item owns.
  func run() { pointee.function(self) }

  /// Whether the item is of the kind that `function` performs.
  // Sound because a C function is its address.
  func isRun(by function: WorkItem.Function) -> Bool {
    unsafeBitCast(pointee.function, to: UInt.self) == unsafeBitCast(function, to: UInt.self)
  }
}

/// A queue of work items, first in, first out.
///
/// It is intrusive, so queueing allocates nothing. The owner of the queue defines its access.
struct WorkQueue {
  private var first: UInt = 0
  private var last: UInt = 0
  private(set) var count = 0
  /// The number of items that have been taken; wraps around.
  private(set) var taken: UInt = 0

  var isEmpty: Bool { first == 0 }
  var firstMessage: Inbox.Message? { first == 0 ? nil : Inbox.decode(first) }

  /// What `taken` will be once all present items have been taken.
  var end: UInt { taken &+ UInt(count) }

  /// Whether the items that were present when `end` was read have been taken.
  func hasTaken(_ end: UInt) -> Bool { Int(bitPattern: taken &- end) >= 0 }

  /// Appends a message.
  ///
  /// The queue takes over the reference that the message owns.
  mutating func append(_ message: Inbox.Message) {
    let word = Inbox.encode(message)
    Inbox.setLink(word, 0)
    if first == 0 { first = word } else { Inbox.setLink(last, word) }
    last = word
    count += 1
  }

  /// Calls `body` with the messages in their order, until it returns false.
  func visit(_ body: (Inbox.Message) -> Bool) {
    var word = first
    while word != 0, body(Inbox.decode(word)) { word = Inbox.link(word) }
  }

  mutating func popFirst() -> Inbox.Message? {
    guard first != 0 else { return nil }
    let word = first
    first = Inbox.link(word)
    count -= 1
    taken &+= 1
    return Inbox.decode(word)
  }
}

// MARK: - Work of a closure

/// A work item made from a closure; it may keep a scheduler pinned.
final class ClosureWork: Sendable {
  // Sound because the item is accessed only by the queue that holds it.
  @exclusivity(unchecked) private nonisolated(unsafe) var storage = WorkItem { item in
    let work: Unmanaged<ClosureWork> = object(holding: UnsafeRawPointer(item), at: 0)
    work.takeRetainedValue().run()
  }
  private let body: @Sendable () -> Void
  private let pinned: Scheduler?

  private init(_ body: @escaping @Sendable () -> Void, _ pinned: Scheduler?) {
    self.body = body
    self.pinned = pinned
    checkAddress(item, of: &storage)
  }

  private var item: UnsafeMutablePointer<WorkItem> { propertyAddress(in: self, at: 0, as: WorkItem.self) }

  /// Returns an item that owns its object.
  static func retained(_ body: @escaping @Sendable () -> Void, _ pinned: Scheduler?) -> UnsafeMutablePointer<WorkItem> {
    let work = ClosureWork(body, pinned)
    _ = Unmanaged.passRetained(work)
    return work.item
  }

  private func run() {
    body()
    pinned?.unpin()
  }
}

// MARK: - Jobs of Swift Concurrency

// A job of Swift Concurrency (a part of a Task between two suspensions, or one run of an actor) that waits for a
// scheduler or for the worker pool.
//
// Memory. Swift leaves two words of each job to the executor that the job was enqueued on, from the enqueueing until
// the executor runs the job. The first is the link of the inbox or queue that holds the job, so enqueueing allocates
// nothing. The second says on behalf of which executor the job runs. Both words belong to the holder of the job: the
// enqueueing thread, then the inbox (whose push releases them), then the drain (whose take acquires them). They are not
// read any more once the job runs: its Task may be destroyed before `run` returns.
//
// A queued job is owned by its queue; running it consumes it. Each job runs exactly once, because a message leaves the
// inbox once.

/// The header of a job, up to the words that this library uses.
///
/// The layout is part of the interface between Swift's compiler and its runtime (docs/unsafe.md).
@usableFromInline
struct SwiftJobHeader {
  private let type: UInt
  private let counts: UInt
  var link: UInt
  var executor: UInt
  private let flags: UInt32
  private let number: UInt32

  /// The lower half of the number of the Task whose part the job is, which is never 0 there; 0 for a job of an actor or
  /// of a continuation, which may go on with any Task.
  var task: UInt32 { flags & 0xff == 0 ? number : 0 }
  /// Whether the job only resumes a Task that gives way: that of `Task.yield`.
  var isYield: Bool { flags & 0xff == 195 }
  /// The priority with which the job was enqueued, as the raw value of a TaskPriority; 0 for none.
  var priority: UInt32 { flags >> 8 & 0xff }

  /// The job was enqueued on the scheduler, as on a task executor.
  static var task: UInt { 0 }
  /// The job was enqueued on the scheduler, as on a serial executor: it is isolated to it.
  static var serial: UInt { 1 }

  // Of a job of the worker pool: on behalf of what it runs, and above the low two bits its level (SwiftJobs).
  static var ofPool: UInt { 0 }
  static var ofPoolExecutor: UInt { 1 }
  /// The Task has no executor of its own.
  static var ofNone: UInt { 2 }
}

@usableFromInline typealias SwiftJobRef = UnsafeMutablePointer<SwiftJobHeader>
