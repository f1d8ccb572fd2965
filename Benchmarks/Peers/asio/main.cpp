// The servers of run-net in Boost.Asio: a stackful coroutine for each connection, all on one thread.
// asio-peer echo|http
#include <boost/asio.hpp>
#include <boost/asio/spawn.hpp>
#include <cstdio>
#include <memory>
#include <string>

namespace asio = boost::asio;
using asio::ip::tcp;

static const std::string response =
    "HTTP/1.1 200 OK\r\nContent-Length: 13\r\nContent-Type: text/plain\r\n\r\nHello, World!";

// Finds the ends of requests without a body in a stream of bytes.
struct RequestCounter {
  int matched = 0;  // the bytes of CR LF CR LF that the last bytes are

  std::size_t ends(const char *bytes, std::size_t count) {
    std::size_t ends = 0;
    for (std::size_t i = 0; i < count; i++) {
      if (bytes[i] == (matched & 1 ? '\n' : '\r')) {
        if (++matched == 4) {
          ends++;
          matched = 0;
        }
      } else {
        matched = bytes[i] == '\r';
      }
    }
    return ends;
  }
};

static void serve(tcp::socket &socket, bool answersHTTP, asio::yield_context yield) {
  boost::system::error_code error;
  RequestCounter counter;
  char buffer[4096];
  while (true) {
    std::size_t count = socket.async_read_some(asio::buffer(buffer), yield[error]);
    if (error) return;
    if (!answersHTTP) {
      asio::async_write(socket, asio::buffer(buffer, count), yield[error]);
    } else if (std::size_t ends = counter.ends(buffer, count); ends == 1) {
      asio::async_write(socket, asio::buffer(response), yield[error]);
    } else if (ends > 1) {
      std::string responses;
      while (ends-- > 0) responses += response;
      asio::async_write(socket, asio::buffer(responses), yield[error]);
    }
    if (error) return;
  }
}

int main(int count, char **arguments) {
  std::string kind = count == 2 ? arguments[1] : "";
  if (kind != "echo" && kind != "http") {
    std::fprintf(stderr, "error: use asio-peer echo|http\n");
    return 2;
  }
  asio::io_context context{1};
  tcp::acceptor acceptor(context, tcp::endpoint(asio::ip::address_v4::loopback(), 0));
  std::printf("port %d\n", acceptor.local_endpoint().port());
  std::fflush(stdout);
  asio::spawn(context, [&](asio::yield_context yield) {
    while (true) {
      boost::system::error_code error;
      auto socket = std::make_shared<tcp::socket>(context);
      acceptor.async_accept(*socket, yield[error]);
      if (error) continue;
      socket->set_option(tcp::no_delay(true), error);
      asio::spawn(context, [socket, kind](asio::yield_context yield) { serve(*socket, kind == "http", yield); });
    }
  });
  context.run();
}
