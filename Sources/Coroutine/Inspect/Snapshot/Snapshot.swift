extension CoroutineRuntime {
  /// The live coroutines of a process at about one moment, as values.
  ///
  /// Made by ``CoroutineRuntime/snapshot(stacks:)``. Two values of one snapshot may be of moments that are as far
  /// apart as the snapshot took.
  public struct Snapshot: Sendable, Codable {
    /// The coroutines, in the order of their launches.
    public var coroutines: [Coroutine]
    /// How late the schedulers are that have not reached their timers for a millisecond or more, the latest first.
    public var lateTimers: [Duration]
    /// Creates a snapshot of given values, for tests of what reads one.
    public init(coroutines: [Coroutine], lateTimers: [Duration] = []) {
      self.coroutines = coroutines
      self.lateTimers = lateTimers
    }

    /// One coroutine of a snapshot.
    public struct Coroutine: Sendable, Codable, Identifiable {
      /// The number, unique in its process.
      public var id: UInt64
      /// The name given at the launch, as given: a report escapes it.
      public var name: String?
      /// The place of the launch, as `file:line`.
      public var launchSite: String
      /// What it does.
      public var state: State
      /// What it waits for; nil unless the state is `waiting`.
      public var wait: Wait?
      /// The label of the queue, the worker or the loop that runs it.
      public var scheduler: String
      /// The time in this state.
      ///
      /// Based on the last time at which its scheduler read the clock: too long by the longest time that one
      /// coroutine ran there without a suspension, at most. Zero if the time was not recorded.
      public var since: Duration
      /// Whether it was cancelled.
      public var isCancelled: Bool
      /// Whether its stack was asked for and could not be read, because it moved each time.
      public var isTorn: Bool
      /// The return addresses of its frames, the innermost first; see ``CoroutineRuntime/frames(at:)``.
      ///
      /// Empty if stacks were not asked for, if it runs or has not started, or if it is torn. A generator that it
      /// steps comes before the frames that step it.
      public var stack: [UInt]

      /// The states of a coroutine.
      public enum State: String, Sendable, Codable {
        /// It was launched, and its body has not begun.
        case notStarted
        /// It waits for nothing but its scheduler.
        case ready
        /// A thread runs it.
        case running
        /// It waits for what ``Snapshot/Coroutine/wait`` says.
        case waiting
      }
    }

    /// What a coroutine waits for.
    public struct Wait: Sendable, Codable {
      /// The kind in one word, for machines: `lock`, `receive`, `job`, `delay`, and so on.
      public var kind: String
      /// The address of what it waits for, if that is one object.
      ///
      /// Others with the same address wait for the same object.
      public var object: UInt?
      /// The number of the coroutine that has to act, if it is known: the owner of a lock, a job that is awaited.
      public var owner: UInt64?
      /// What it waits for in words, with users' texts escaped.
      public var text: String
    }

    /// A frame of a stack.
    public struct Frame: Sendable, Codable {
      /// The return address.
      public var address: UInt
      /// The name of the function, as Swift would write it; nil if no symbol table has it.
      public var symbol: String?
      /// The path of the program or library that contains the address.
      public var image: String?
      /// The build ID of the image, in hexadecimal digits.
      public var buildID: String?
    }
  }
}
