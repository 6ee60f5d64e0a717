// The one translation unit with the bodies of Asio and Beast (see BOOST_*_SEPARATE_COMPILATION in
// CMakeLists.txt).
#include <boost/asio/impl/src.hpp>
#include <boost/beast/src.hpp>
