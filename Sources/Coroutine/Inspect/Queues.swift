import Synchronization

// Queues that hold values or work: channels, mailboxes, and schedulers with coroutines that have not started.
//
// How long a queue has held its oldest value. A send notes no time. But each value of a queue has a number, in the
// order of its coming: those from `removed` on are there, and the next one will be `removed + count`. Each look
// remembers the time, and the number of the value that would come next. So the first value was there at every look that
// remembers a larger number than its own, and the earliest of these says how long it has been there at least. The looks
// are those of all who ask (``CoroutineRuntime/queues(most:)``), and of a server of diagnostics, every few seconds.

/// What the looks at one queue have seen.
struct QueueLooks {
  private struct Look {
    let time: UInt64
    /// The number of the value that comes next.
    let next: Int
  }

  /// In the order of their times; each has a larger number than the one before.
  private var looks: [Look] = []
  private static var most: Int { 8 }

  /// Adds a look, and returns how long the first value has been there at least, in ns.
  mutating func look(at now: UInt64, removed: Int, count: Int) -> UInt64 {
    looks.removeAll { $0.next <= removed }
    guard count > 0 else { return 0 }
    let next = removed + count
    if let last = looks.last, last.next >= next {} else { looks.append(Look(time: now, next: next)) }
    // The first and the last one stay: the others say when a value will be seen to be old, and may be coarse.
    if looks.count > Self.most { looks.remove(at: Self.most / 2) }
    return now - min(now, looks.first?.time ?? now)
  }
}

/// The looks at all queues.
enum QueueWatch {
  private static let lock = ThreadLock()
  // Sound because it is accessed under `lock`. By the numbers of the entries: an address is used again.
  nonisolated(unsafe) private static var looks: [UInt64: QueueLooks] = [:]

  /// Looks at all channels and mailboxes; returns those that hold something.
  static func look() -> [CoroutineRuntime.HeldQueue] {
    let listed = ValueQueues.list().map { (queue: $0.queue, entry: $0.entry, holding: $0.queue.holding) }
    let held = listed.filter { $0.holding.count > 0 }
    let now = Clock.now
    let ages: [UInt64] = lock.withLock {
      var next: [UInt64: QueueLooks] = [:]
      next.reserveCapacity(held.count)
      let ages = held.map { single in
        var looks = looks[single.entry.number] ?? QueueLooks()
        defer { next[single.entry.number] = looks }
        return looks.look(at: now, removed: single.holding.removed, count: single.holding.count)
      }
      // Those that hold nothing, or have gone, begin anew.
      looks = next
      return ages
    }
    return zip(held, ages).map { single, age in
      CoroutineRuntime.HeldQueue(
        kind: single.holding.owner == nil ? .channel : .mailbox,
        name: single.holding.owner?.shownName ?? ObjectNames.name(of: single.queue),
        count: single.holding.count,
        limit: single.holding.limit == .max ? nil : single.holding.limit,
        oldest: .nanoseconds(Int64(clamping: age)),
        site: single.entry.site.description,
        owner: single.holding.owner?.id,
        object: UInt(bitPattern: Unmanaged.passUnretained(single.queue as AnyObject).toOpaque()),
        lastReceiver: JobNames().lastReceiver(single.holding.lastReceiver)
      )
    }
  }

  /// The schedulers with coroutines that have not started, those of a pool as one.
  static func notStarted() -> [CoroutineRuntime.HeldQueue] {
    var waiting: [String: (count: Int, since: UInt64)] = [:]
    let now = Clock.now
    LiveJobs.listing.withLock {
      LiveJobs.visitAll { scheduler in
        var (count, since) = (0, UInt64.max)
        scheduler.visitLiveJobs { job in
          guard job.isNotStarted else { return }
          count += 1
          let launched = job.pointee.waitingSince.load(ordering: .relaxed)
          if launched != 0 { since = min(since, launched) }
        }
        if count == 0 { return }
        let pool = scheduler.readyQueue.pointee.workerPool
        let label = pool?._withUnsafeGuaranteedRef { $0.label } ?? scheduler.host.givenLabel
        let known = waiting[label] ?? (0, .max)
        waiting[label] = (known.count + count, min(known.since, since))
      }
    }
    return waiting.map { label, queue in
      CoroutineRuntime.HeldQueue(
        kind: .scheduler,
        name: label,
        count: queue.count,
        oldest: .nanoseconds(Int64(clamping: now - min(now, queue.since)))
      )
    }
  }
}

extension UnsafeMutablePointer where Pointee == JobRecord {
  /// Whether a live job waits for its scheduler to begin it.
  fileprivate var isNotStarted: Bool {
    pointee.wait.load(ordering: .relaxed) & 0xFF == 0
      && pointee.waitKind.load(ordering: .relaxed) == WaitKind.start.rawValue
      && pointee.flags.load(ordering: .relaxed) & JobFlags.begun == 0
  }
}

// MARK: - What programs see

extension CoroutineRuntime {
  /// A queue that holds values or work at a moment.
  public struct HeldQueue: Sendable {
    /// What holds it.
    public var kind: Kind
    /// The name of the channel, the actor or the queue, as given.
    public var name: String?
    /// The number of values, of messages, or of coroutines that have not started.
    public var count: Int
    /// The number of values at which a send waits or drops one; nil if there is none.
    public var limit: Int?
    /// How long the oldest one has been there, at least: as far as the looks tell that were made before.
    ///
    /// Of a scheduler's coroutines it is exact.
    public var oldest: Duration
    /// The place where the channel or the actor was made, as `file:line`.
    public var site: String?
    /// The number of the actor's coroutine.
    public var owner: UInt64?
    /// The address of the channel, as dumps show it.
    public var object: UInt?
    /// The coroutine that has waited last for a value of the channel, in words.
    public var lastReceiver: String?

    /// The kinds of queues.
    public enum Kind: String, Sendable {
      /// A channel that may hold eight values or more.
      case channel
      /// The mailbox of an actor that may hold eight messages or more.
      case mailbox
      /// A queue of the program, a worker pool or a loop, with coroutines that have not started.
      case scheduler
    }
  }

  /// Returns the queues that hold most, and those that have held something longest: channels, mailboxes of actors, and
  /// schedulers with coroutines that have not started.
  ///
  /// A send notes nothing. What has been in a channel for how long is what two looks at it tell, so the first call
  /// knows no ages, and a program that wants them calls this every few seconds; so does a server of diagnostics. Its
  /// cost grows with the number of channels that can hold eight values or more, and with that of live coroutines.
  ///
  /// Never suspends; any thread, even while all workers and queues are blocked. The last reference to a channel may be
  /// released here, so that its `deinit` runs on the calling thread. Channels of simulated worlds are not listed.
  ///
  /// - Parameter most: The largest number of queues.
  /// - Returns: The queues, the one that has held something longest first.
  public static func queues(most: Int = 16) -> [HeldQueue] {
    if LiveJobs.isInWorld { return [] }
    let most = max(0, most)
    let all = QueueWatch.look() + QueueWatch.notStarted()
    func isBefore(_ one: HeldQueue, _ other: HeldQueue) -> Bool {
      (other.oldest, other.count, one.site ?? "") < (one.oldest, one.count, other.site ?? "")
    }
    guard all.count > most else { return all.sorted(by: isBefore) }
    let byCount = all.sorted { $0.count > $1.count }
    let fullest = byCount.prefix(most / 2)
    let oldest = byCount.dropFirst(most / 2).sorted(by: isBefore).prefix(most - fullest.count)
    return (fullest + oldest).sorted(by: isBefore)
  }

  /// The lines about the queues that hold something, for a dump; empty without any.
  static func queuesText(_ most: Int) -> String {
    let queues = queues(most: most)
    if queues.isEmpty { return "" }
    return queues.reduce(into: "\nQueues that hold something:\n") { $0 += "  \($1.line)\n" }
  }

  /// Looks at all queues, so that a later call of ``queues(most:)`` knows since when they hold what they hold.
  package static func lookAtQueues() { _ = QueueWatch.look() }
}

extension CoroutineRuntime.HeldQueue {
  /// `channel "jobs": 16 of 16 values, the oldest for 9 s at least, made at Server/main.swift:12, last receiver …`.
  package var line: String {
    var text = kind.rawValue
    if let name { text += " \"\(name.asName)\"" }
    text += ": \(count)" + (limit.map { " of \($0)" } ?? "")
    switch kind {
    case .channel: text += count == 1 ? " value" : " values"
    case .mailbox: text += count == 1 ? " message" : " messages"
    case .scheduler: text += count == 1 ? " coroutine has not started" : " coroutines have not started"
    }
    if oldest > .zero { text += ", the oldest for \(EndedJob.seconds(oldest))\(kind == .scheduler ? "" : " at least")" }
    if let site { text += ", made at \(site)" }
    if let owner { text += ", handled by #\(owner)" }
    if let lastReceiver { text += ", \(lastReceiver)" }
    return text
  }
}
