"""The whole model beside the float32 one, before anything ships."""
