"""The driver's side of fit, evaluate and predict: functions of what an estimator is and what it has learned."""
