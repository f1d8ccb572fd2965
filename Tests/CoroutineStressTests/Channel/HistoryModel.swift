// A model of a channel as a sequence of steps, and the search for an order of steps that explains a history.
//
// An operation that may wait takes effect twice: when it asks (it is served at once or queued) and when it is served
// (by a later operation). The model leaves open only which ready case a select takes, and the recorded answer
// determines that. So the order of asking determines everything. A history is linearizable if there is an order in
// which (1) an operation asks after every operation that had returned before it was called has been served, and (2)
// every operation is served with its recorded answer.

struct Operation: Sendable {
  enum Kind: Sendable, Equatable {
    case send(Int)
    case receive
    case trySend(Int)
    case tryReceive, close
    /// A select between sending the value and receiving one.
    case either(Int)
  }
  enum Answer: Sendable, Equatable {
    case done
    case value(Int)
    case full, empty, closed, first, again
  }

  var kind: Kind
  var answer = Answer.done
  /// The times of the call and the return, on a shared clock.
  var called = 0
  var returned = 0
}

struct ChannelModel {
  typealias Served = (operation: Int, answer: Operation.Answer)

  private let capacity: Int
  private var buffer: [Int] = []
  /// The waiting operations, first come, first served; a select is in both lists.
  private var senders: [(operation: Int, value: Int)] = []
  private var receivers: [Int] = []
  private var isClosed = false

  init(capacity: Int) { self.capacity = capacity }

  /// Returns the operations that `operation` serves, with their answers.
  ///
  /// `answer` is the recorded answer of a select.
  mutating func ask(_ kind: Operation.Kind, _ operation: Int, recorded answer: Operation.Answer) -> [Served] {
    switch kind {
    case .send(let value):
      if isClosed { return [(operation, .closed)] }
      if let served = accept(value) { return served + [(operation, .done)] }
      senders.append((operation, value))
    case .trySend(let value):
      if isClosed { return [(operation, .closed)] }
      return accept(value).map { $0 + [(operation, .done)] } ?? [(operation, .full)]
    case .receive, .tryReceive:
      if let (value, served) = take() { return [(operation, .value(value))] + served }
      if isClosed { return [(operation, .closed)] }
      if kind == .tryReceive { return [(operation, .empty)] }
      receivers.append(operation)
    case .either(let value):
      // After the close both are ready: the send fails, the receive gets the remaining values.
      if isClosed, answer == .closed { return [(operation, .closed)] }
      if answer == .done, !isClosed, let served = accept(value) { return served + [(operation, .done)] }
      if answer != .done, let (value, served) = take() { return [(operation, .value(value))] + served }
      // One case was ready, and the answer belongs to the other one.
      if isReady { return [(operation, answer == .full ? .empty : .full)] }
      senders.append((operation, value))
      receivers.append(operation)
    case .close:
      if isClosed { return [(operation, .again)] }
      isClosed = true
      let waiting = receivers + senders.map(\.operation).filter { !receivers.contains($0) }
      (receivers, senders) = ([], [])
      return waiting.map { ($0, .closed) } + [(operation, .first)]
    }
    return []
  }

  private var isReady: Bool {
    isClosed || !buffer.isEmpty || buffer.count < capacity || !senders.isEmpty || !receivers.isEmpty
  }

  /// Hands a value over or buffers it; returns nil if neither is possible.
  private mutating func accept(_ value: Int) -> [Served]? {
    if let receiver = receivers.first {
      forget(receiver)
      return [(receiver, .value(value))]
    }
    guard buffer.count < capacity else { return nil }
    buffer.append(value)
    return []
  }

  /// Takes the first value, buffered or held by a waiting sender; returns nil if there is none.
  private mutating func take() -> (Int, [Served])? {
    if !buffer.isEmpty {
      let value = buffer.removeFirst()
      guard let sender = senders.first else { return (value, []) }
      forget(sender.operation)
      buffer.append(sender.value)
      return (value, [(sender.operation, .done)])
    }
    guard let sender = senders.first else { return nil }
    forget(sender.operation)
    return (sender.value, [(sender.operation, .done)])
  }

  private mutating func forget(_ operation: Int) {
    receivers.removeAll { $0 == operation }
    senders.removeAll { $0.operation == operation }
  }
}

/// Whether some order of the operations explains their answers.
func isLinearizable(_ history: [Operation], capacity: Int) -> Bool {
  precondition(history.count < 64)
  let everyone = (UInt64(1) << UInt64(history.count)) - 1

  func search(_ model: ChannelModel, asked: UInt64, served: UInt64) -> Bool {
    if served == everyone { return true }
    for index in history.indices where asked & (1 << UInt64(index)) == 0 {
      let isTooEarly = history.indices.contains {
        history[$0].returned < history[index].called && served & (1 << UInt64($0)) == 0
      }
      if isTooEarly { continue }
      var next = model
      let answers = next.ask(history[index].kind, index, recorded: history[index].answer)
      guard answers.allSatisfy({ history[$0.operation].answer == $0.answer }) else { continue }
      let nowServed = answers.reduce(served) { $0 | 1 << UInt64($1.operation) }
      if search(next, asked: asked | 1 << UInt64(index), served: nowServed) { return true }
    }
    return false
  }
  return search(ChannelModel(capacity: capacity), asked: 0, served: 0)
}
