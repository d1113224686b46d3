"""Administration over HTTP. It asks through the pump it is handed; it knows neither frames nor SQL."""
