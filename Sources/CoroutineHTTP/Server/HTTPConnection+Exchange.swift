#if HTTP
import CLLHTTP
import Coroutine
import CoroutineNet
import HTTPTypes

extension HTTPConnection {
  /// Calls the handler for the request whose head was read, and ends the response; returns whether the connection
  /// goes on.
  func serveOne() throws -> Bool {
    try enter(.busy)
    var response = ServerResponse(self)
    do {
      try service.handle(ServerRequest(self), &response)
      if !exchange.isUpgraded { try complete(&response) }
    } catch {
      try answer(error)
    }
    return try endExchange()
  }

  /// Ends a response that the handler has not ended.
  private func complete(_ response: inout ServerResponse) throws {
    if exchange.isBroken || exchange.phase == .ended { return }
    if exchange.isRefused, exchange.phase == .new { throw HTTPError.invalidField }
    if exchange.phase == .new { try response.send([], type: nil) } else { try response.finish() }
  }

  /// Answers an error of the handler, or throws it if nothing can be answered.
  private func answer(_ error: any Error) throws {
    if phase.reason != nil || co_isCancelled || exchange.isUpgraded { throw error }
    let (status, message): (HTTPResponse.Status, String)
    switch error {
    case let error as HTTPStatusError: (status, message) = (error.status, error.message)
    case let error as HTTPError where error.isOfClient:
      (status, message) = (error.status, error.description)
      exchange.keepsAlive = false
    default:
      (status, message) = (.internalServerError, HTTPResponse.Status.internalServerError.reasonPhrase)
      // A client that has gone is no error of the server.
      if !(error is NetError && exchange.isBroken) { report(error) }
    }
    // Otherwise the client has the whole response, or sees that it is incomplete.
    if exchange.phase == .new { try respond(status, message) }
  }

  private func report(_ error: any Error) {
    if let onError = service.options.server.onError {
      onError(error, transport.connection.remoteAddress)
    } else {
      // A failed coroutine that nobody joins is reported.
      _ = co_launch(name: "http handler") { throw error }
    }
  }

  /// Sends a whole response with a text.
  func respond(_ status: HTTPResponse.Status, _ message: String) throws {
    var response = ServerResponse(self)
    // Statuses that end nothing, or that have no body, cannot tell of an error.
    response.status = status.code < 200 ? .internalServerError : status
    try response.send(message)
  }

  private func endExchange() throws -> Bool {
    if exchange.isUpgraded { return false }
    // The client must not wait for the rest of a response that does not come.
    if exchange.isBroken || exchange.phase != .ended { throw HTTPError.responseEnded }
    guard exchange.keepsAlive else { return false }
    return try discardBody()
  }
}
#endif
