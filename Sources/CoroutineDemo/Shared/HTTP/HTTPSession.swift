#if Demo
import Dispatch
import Foundation

#if canImport(FoundationNetworking)
import FoundationNetworking
#endif

/// Why a request brought no answer that can be used; every case names the address.
enum HTTPError: Error, Equatable, CustomStringConvertible {
  /// Nobody answers there: no such host, nothing listening, connection lost.
  case unreachable(URL, reason: String)
  /// An answer that is no success; `message` is what the site says about it.
  case refused(URL, status: Int, message: String)
  /// A success that makes no sense.
  case malformed(URL, what: String)

  var description: String {
    switch self {
    case .unreachable(let url, let reason): "\(url.absoluteString) cannot be reached: \(reason)"
    case .refused(let url, let status, let message):
      "\(url.absoluteString) answered \(status)\(message.isEmpty ? "" : ": \(message)")"
    case .malformed(let url, let what): "\(url.absoluteString) answered nonsense: \(what)"
    }
  }
}

/// URLSession as it is: an answer comes to a callback, on a thread of the session's.
///
/// How coroutines wait for such a callback is HTTPSession+Coroutine.swift.
final class HTTPSession: Sendable {
  private let session: URLSession
  /// Entered once a request until its callback has run, so that `close` can tell when nothing is in flight.
  private let inFlight = DispatchGroup()

  init() {
    let configuration = URLSessionConfiguration.ephemeral
    // The job as a whole has a deadline; the session's own one minute must not come first.
    configuration.timeoutIntervalForRequest = 24 * 60 * 60
    session = URLSession(configuration: configuration)
  }

  /// Sends `request`; `done` runs once, also when the task that is returned is cancelled.
  @discardableResult
  func send(
    _ request: URLRequest,
    _ done: @escaping @Sendable (Result<Data, any Error>) -> Void
  ) -> URLSessionDataTask {
    inFlight.enter()
    let task = session.dataTask(with: request) { [inFlight] data, response, error in
      done(Self.result(request, data, response, error))
      inFlight.leave()
    }
    task.resume()
    return task
  }

  /// Cancels what is in flight and blocks the thread until it is gone; false if it was still there after `seconds`.
  func close(within seconds: Int) -> Bool {
    session.invalidateAndCancel()
    return becomesIdle(within: seconds)
  }

  /// Blocks the thread until no request is in flight; false if one still was after `seconds`.
  func becomesIdle(within seconds: Int) -> Bool {
    inFlight.wait(timeout: .now() + .seconds(seconds)) == .success
  }

  private static func result(
    _ request: URLRequest,
    _ data: Data?,
    _ response: URLResponse?,
    _ error: (any Error)?
  ) -> Result<Data, any Error> {
    guard let url = request.url else { preconditionFailure("requests are made from addresses") }
    if let error = error as? URLError {
      return .failure(HTTPError.unreachable(url, reason: error.localizedDescription))
    } else if let error {
      return .failure(error)
    }
    guard let response = response as? HTTPURLResponse, let data else {
      return .failure(HTTPError.malformed(url, what: "no HTTP response"))
    }
    guard (200..<300).contains(response.statusCode) else {
      let message = String(decoding: data.prefix(200), as: UTF8.self).trimmingCharacters(in: .whitespacesAndNewlines)
      return .failure(HTTPError.refused(url, status: response.statusCode, message: message))
    }
    return .success(data)
  }
}
#endif
