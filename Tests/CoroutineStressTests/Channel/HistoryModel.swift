// A channel as a sequence of steps, and the search for an order of steps that explains what was seen.
//
// An operation that may wait takes effect twice: when it asks (it is served at once or queued) and when it is served (by
// another's asking). The model is deterministic, so an order of askings decides everything. A history is linearizable if
// there is an order in which (1) an operation asks after every operation that had returned before it was called has been
// served, and (2) everyone is served with the result that was recorded.

struct Operation: Sendable {
  enum Kind: Sendable, Equatable { case send(Int), receive, trySend(Int), tryReceive, close }
  enum Answer: Sendable, Equatable { case done, value(Int), full, empty, closed, first, again }

  var kind: Kind
  var answer = Answer.done
  /// When it was called and when it returned, on a clock that all share.
  var called = 0
  var returned = 0
}

struct ChannelModel {
  private let capacity: Int
  private var buffer: [Int] = []
  private var senders: [(operation: Int, value: Int)] = []
  private var receivers: [Int] = []
  private var isClosed = false

  init(capacity: Int) { self.capacity = capacity }

  /// Who is served by the asking of `operation`, with what.
  mutating func ask(_ kind: Operation.Kind, _ operation: Int) -> [(operation: Int, answer: Operation.Answer)] {
    switch kind {
    case .send(let value):
      if isClosed { return [(operation, .closed)] }
      if let served = accept(value) { return served + [(operation, .done)] }
      senders.append((operation, value))
      return []
    case .trySend(let value):
      if isClosed { return [(operation, .closed)] }
      return (accept(value) ?? []).isEmpty && !wasAccepted
        ? [(operation, .full)] : lastServed + [(operation, .done)]
    case .receive, .tryReceive:
      if !buffer.isEmpty {
        let value = buffer.removeFirst()
        var served: [(Int, Operation.Answer)] = [(operation, .value(value))]
        if !senders.isEmpty {
          let sender = senders.removeFirst()
          buffer.append(sender.value)
          served.append((sender.operation, .done))
        }
        return served
      }
      if !senders.isEmpty {
        let sender = senders.removeFirst()
        return [(operation, .value(sender.value)), (sender.operation, .done)]
      }
      if isClosed { return [(operation, .closed)] }
      if kind == .tryReceive { return [(operation, .empty)] }
      receivers.append(operation)
      return []
    case .close:
      if isClosed { return [(operation, .again)] }
      isClosed = true
      defer { (receivers, senders) = ([], []) }
      return (receivers + senders.map(\.operation)).map { ($0, .closed) } + [(operation, .first)]
    }
  }

  private var wasAccepted = false
  private var lastServed: [(operation: Int, answer: Operation.Answer)] = []

  /// Hands a value over or buffers it; nil: neither is possible.
  private mutating func accept(_ value: Int) -> [(operation: Int, answer: Operation.Answer)]? {
    (wasAccepted, lastServed) = (true, [])
    if !receivers.isEmpty {
      lastServed = [(receivers.removeFirst(), .value(value))]
    } else if buffer.count < capacity {
      buffer.append(value)
    } else {
      wasAccepted = false
      return nil
    }
    return lastServed
  }
}

/// Whether some order of the operations explains their answers.
func isLinearizable(_ history: [Operation], capacity: Int) -> Bool {
  precondition(history.count <= 64)

  func search(_ model: ChannelModel, asked: UInt64, served: UInt64) -> Bool {
    if served == (1 << UInt64(history.count)) &- 1 || (history.count == 64 && served == .max) { return true }
    for index in history.indices where asked & (1 << UInt64(index)) == 0 {
      let isTooEarly = history.indices.contains {
        history[$0].returned < history[index].called && served & (1 << UInt64($0)) == 0
      }
      if isTooEarly { continue }
      var next = model
      var nowServed = served
      let answers = next.ask(history[index].kind, index)
      guard answers.allSatisfy({ history[$0.operation].answer == $0.answer }) else { continue }
      for (operation, _) in answers { nowServed |= 1 << UInt64(operation) }
      if search(next, asked: asked | 1 << UInt64(index), served: nowServed) { return true }
    }
    return false
  }
  return search(ChannelModel(capacity: capacity), asked: 0, served: 0)
}
