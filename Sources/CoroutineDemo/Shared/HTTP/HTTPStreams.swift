#if Demo
import Coroutine
import Dispatch
import Foundation

#if canImport(FoundationNetworking)
import FoundationNetworking
#endif

/// An answer whose body is still arriving.
struct HTTPStream: Sendable {
  let response: HTTPURLResponse
  let body: Spool
  /// Ends the transfer, if it has not ended; nothing may be read after it.
  let close: @Sendable () -> Void
}

/// URLSession for answers that are read while they arrive: its delegate hands each piece to the answer's spool.
///
/// Redirects are followed, compressed answers come unpacked: that is URLSession's own doing. It keeps no cache, no
/// cookies.
final class HTTPStreams: NSObject, Sendable {
  /// Beyond that many in a row, redirects go round in circles.
  private static let mostRedirects = 10
  private let longest: Int
  private let arrivals = Locked<[Int: Arrival]>([:])
  /// Entered once a request until its last callback, so that `close` can tell when nothing is in flight.
  private let inFlight = DispatchGroup()
  private let session: Locked<URLSession?>

  /// One request under way: who waits for its head, and where its body goes.
  private struct Arrival: Sendable {
    var head: Resumer<HTTPURLResponse>?
    var body: Spool
    var redirects = 0
  }

  /// `connections` is how many requests may go to one host at once, `longest` how many bytes an answer may have.
  init(connections: Int, longest: Int) {
    self.longest = longest
    session = Locked(nil)
    super.init()
    let configuration = URLSessionConfiguration.ephemeral
    // Whoever asks has a deadline; the session's own one minute must not come first.
    configuration.timeoutIntervalForRequest = 24 * 60 * 60
    configuration.httpMaximumConnectionsPerHost = connections
    configuration.requestCachePolicy = .reloadIgnoringLocalCacheData
    configuration.urlCache = nil
    configuration.httpCookieStorage = nil
    session.withLock { $0 = URLSession(configuration: configuration, delegate: self, delegateQueue: nil) }
  }

  /// Sends `request` and returns when the head of its answer is here, whatever its status is.
  ///
  /// Suspends the coroutine until then, or until it is cancelled: then the request is cancelled too. Throws HTTPError
  /// where nobody answers. Off a coroutine: `CoroutineError.notInCoroutine`.
  func open(_ request: URLRequest) throws -> HTTPStream {
    let body = try Spool(longest: longest)
    guard let task = session.withLock({ $0?.dataTask(with: request) }) else { throw CancellationError() }
    // Needed because `onCancel` is handed over before the request is on its way.
    let cancellation = Cancellation()
    let response = try co_suspend(onCancel: cancellation.cancel) { head in
      arrivals.withLock { $0[task.taskIdentifier] = Arrival(head: head, body: body) }
      inFlight.enter()
      task.resume()
      cancellation.covers { _ in task.cancel() }
    }
    return HTTPStream(response: response, body: body) { task.cancel() }
  }

  /// Cancels what is in flight and blocks the thread until it is gone; false if it was still there after `seconds`.
  func close(within seconds: Int) -> Bool {
    session.withLock { session in
      session?.invalidateAndCancel()
      session = nil
    }
    return inFlight.wait(timeout: .now() + .seconds(seconds)) == .success
  }
}

extension HTTPStreams: URLSessionDataDelegate {
  func urlSession(
    _ session: URLSession,
    dataTask: URLSessionDataTask,
    didReceive response: URLResponse,
    completionHandler: @escaping @Sendable (URLSession.ResponseDisposition) -> Void
  ) {
    let head = arrivals.withLock { $0[dataTask.taskIdentifier]?.head.take() }
    if let response = response as? HTTPURLResponse {
      head?.resume(response)
    } else {
      head?.fail(HTTPError.malformed(Self.address(of: dataTask), what: "no HTTP response"))
    }
    completionHandler(.allow)
  }

  func urlSession(_ session: URLSession, dataTask: URLSessionDataTask, didReceive data: Data) {
    guard let body = arrivals.withLock({ $0[dataTask.taskIdentifier]?.body }) else { return }
    do {
      try body.append(data)
    } catch {
      body.finish(error)
      dataTask.cancel()
    }
  }

  func urlSession(_ session: URLSession, task: URLSessionTask, didCompleteWithError error: (any Error)?) {
    guard let arrival = arrivals.withLock({ $0.removeValue(forKey: task.taskIdentifier) }) else { return }
    let failure = error.map { HTTPError.unreachable(Self.address(of: task), reason: Self.reason($0)) }
    arrival.head?.fail(failure ?? HTTPError.malformed(Self.address(of: task), what: "no HTTP response"))
    arrival.body.finish(failure)
    inFlight.leave()
  }

  func urlSession(
    _ session: URLSession,
    task: URLSessionTask,
    willPerformHTTPRedirection response: HTTPURLResponse,
    newRequest request: URLRequest,
    completionHandler: @escaping @Sendable (URLRequest?) -> Void
  ) {
    let count = arrivals.withLock { arrivals in
      arrivals[task.taskIdentifier]?.redirects += 1
      return arrivals[task.taskIdentifier]?.redirects ?? 0
    }
    // No answer of the web's may lead to a file of this machine's.
    let isWeb = ["http", "https"].contains(request.url?.scheme?.lowercased() ?? "")
    // Not followed, the redirect is the answer: its status says what went wrong.
    completionHandler(isWeb && count <= Self.mostRedirects ? request : nil)
  }

  /// URLSession says "could not connect" when it has no descriptor for a connection.
  static func reason(_ error: any Error, descriptorsLeft: Int = DescriptorLimit.left) -> String {
    descriptorsLeft == 0 ? DescriptorLimit.exceeded : error.localizedDescription
  }

  private static func address(of task: URLSessionTask) -> URL {
    guard let url = task.originalRequest?.url else { preconditionFailure("requests are made from addresses") }
    return url
  }
}
#endif
