import Coroutine
import CoroutineNet

/// BLPOP or BRPOP: takes an item of the first of several lists that has one, or waits for one.
///
/// No item is lost. A push gives its item to the client's channel, which has room for one, or keeps it. The end of the
/// time or of the connection closes the channel, and an item that was in it goes back to its list.
struct BlockingPop {
  private let keys: [[UInt8]]
  private let end: List.End
  /// Nil: without limit.
  private let limit: Duration?

  init(_ words: Words, _ end: List.End) throws(Refusal) {
    guard let seconds = Double(String(decoding: words[words.count - 1], as: UTF8.self)), seconds.isFinite else {
      throw .notTime
    }
    guard seconds >= 0 else { throw .negativeTime }
    limit = seconds == 0 ? nil : .seconds(min(seconds, 1e9))
    keys = words.dropLast().map { [UInt8]($0) }
    self.end = end
  }

  /// Suspends until a list has an item, or the time is over: then the result is nil.
  ///
  /// Throws if the client has gone.
  func pop(from owner: some Owner, _ connection: Connection, _ reader: inout BufferedReader) throws -> Result<
    Popped?, Refusal
  > {
    let client = WaitingClient(end)
    var waits: [[UInt8]] = []
    defer {
      client.items.close()
      for key in waits { key.withUnsafeBytes { key in owner.use(key) { $0.removeWaiting(client, for: key) } } }
      // Not received: the time was over, or the client has gone.
      if case .received(let item) = client.items.tryReceive() {
        item.key.withUnsafeBytes { key in owner.use(key) { $0.giveBack(item) } }
      }
    }
    for key in keys {
      let found = key.withUnsafeBytes { popNow($0, owner, client) }
      guard case .success(nil) = found else { return found }
      waits.append(key)
    }
    return .success(try wait(client, connection, &reader))
  }

  /// Takes an item that is there, or notes the client as one that waits.
  private func popNow(_ key: Bytes, _ owner: some Owner, _ client: WaitingClient) -> Result<Popped?, Refusal> {
    var found: Result<Popped?, Refusal> = .success(nil)
    owner.use(key) { store in
      do throws(Refusal) {
        if let value = try store.pop(key, end) {
          found = .success(Popped(key: [UInt8](key), value: value, end: end))
        } else {
          store.addWaiting(client, for: key)
        }
      } catch {
        found = .failure(error)
      }
    }
    return found
  }

  private enum Event {
    case item(Popped?)
    case input
    case timeout
  }

  private func wait(_ client: WaitingClient, _ connection: Connection, _ reader: inout BufferedReader) throws -> Popped?
  {
    let start = co_now
    while true {
      // A client that sends its next commands before it has this reply is read up to a limit.
      let reads = reader.bufferedCount < 65_536
      let event: Event = try co_select(biased: true) {
        client.items.onReceive { Event.item($0) }
        if reads { connection.onReadable { Event.input } }
        if let limit { SelectCase.onTimeout(limit - start.duration(to: co_now)) { Event.timeout } }
      }
      switch event {
      case .item(let item): return item
      case .timeout: return nil
      case .input: if try !reader.fill() { throw NetError.endOfStream }
      }
    }
  }

  func reply(_ result: Result<Popped?, Refusal>, _ replies: inout Replies) {
    switch result {
    case .success(let item?):
      replies.array(2)
      replies.text(item.key)
      replies.text(item.value)
    case .success(nil): replies.nullArray()
    case .failure(let refusal): replies.error(refusal.text)
    }
  }
}
