import Coroutine
import CoroutineHTTP
import Foundation
import HTTPTypes

extension Site {
  private enum Step: Sendable {
    case changed, quiet, stopped
  }

  /// Sends the state of all feeds, and then each change, until the client goes away or the server stops.
  ///
  /// A client that is slower than the changes misses steps, but never the latest state of a feed.
  func sendEvents(_ response: inout ServerResponse) throws {
    response.fields[.contentType] = "text/event-stream"
    response.fields[.cacheControl] = "no-store"
    try news.listening { changes in
      var sent = library.feeds
      try response.write("event: count\ndata: \(sent.count)\n\n")
      for feed in sent { try send(feed, &response) }
      let stopping = co_stopping
      while true {
        let step: Step = try co_select {
          changes.onReceive { $0 == nil ? .stopped : .changed }
          stopping.onAwait { _ in .stopped }
            // A comment, so that a client that has gone is noticed although nothing changes.
            .onTimeout(.seconds(15)) { .quiet }
        }
        if step == .quiet { try response.write(": still here\n\n") }
        // Also when the server stops: the signal of the last change may not have been received.
        let feeds = library.feeds
        for (feed, old) in zip(feeds, sent) where feed != old { try send(feed, &response) }
        sent = feeds
        if step == .stopped { return }
      }
    }
  }

  private func send(_ feed: FeedStatus, _ response: inout ServerResponse) throws {
    try response.write("event: feed\ndata: \(String(decoding: Self.json(feed), as: UTF8.self))\n\n")
  }
}
