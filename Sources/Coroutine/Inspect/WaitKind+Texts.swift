extension WaitKind {
  /// The kind in one word, for machines.
  var name: String {
    switch self {
    case .start: "start"
    case .nothing: "nothing"
    case .ready: "ready"
    case .callback: "callback"
    case .task: "task"
    case .delay: "delay"
    case .job: "job"
    case .promise: "promise"
    case .children: "children"
    case .select: "select"
    case .blocking: "blocking"
    case .readable: "readable"
    case .writable: "writable"
    case .descriptor: "descriptor"
    case .lock: "lock"
    case .receive: "receive"
    case .send: "send"
    case .permits: "permits"
    case .condition: "condition"
    case .group: "group"
    case .answer: "answer"
    case .decision: "decision"
    case .queue: "queue"
    }
  }

  /// The words after "waiting".
  var phrase: String {
    switch self {
    case .start, .nothing, .ready: "for its turn"
    case .callback: "for a callback"
    case .task: "for a Task"
    case .delay: "for a delay"
    case .job: "for a job"
    case .promise: "for a promise"
    case .children: "for its children"
    case .select: "in a select"
    case .blocking: "for blocking work"
    case .readable: "for a readable descriptor"
    case .writable: "for a writable descriptor"
    case .descriptor: "for a readable or writable descriptor"
    case .lock: "for a lock"
    case .receive: "to receive"
    case .send: "to send"
    case .permits: "for permits"
    case .condition: "for a condition"
    case .group: "for a count to reach zero"
    case .answer: "for an answer"
    case .decision: "for its supervisor"
    case .queue: "to continue on another queue"
    }
  }

  /// The address of the `Inspectable` that a wait of this kind has recorded, if any.
  func sourceAddress(_ number: UInt) -> UInt? {
    switch self {
    case .receive, .send, .lock, .permits, .condition, .group, .select, .job: number
    // The recorded address is that of its completion, the first property of a promise.
    case .promise: number &- UInt(objectHeader)
    default: nil
    }
  }
}
